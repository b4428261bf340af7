#!/usr/bin/env python3
"""From a cold process to its first token, and the memory that this took.

Starts a server again and again, asks for one token as soon as it is ready, and prints medians with the least and the most:
seconds from the start of the process to its readiness (by the log of one that says so there, as asking costs what is being
timed; else until /health says 200) and to the first token, the processor time that this took,
and the process's largest resident memory, in all (VmHWM, with pages of mapped files) and without files (RssAnon, at the first token), as parts of the
weights' size. With several commands they take turns in changing order; {port} in a command stands for a free port.

  bench/startup_bench.py --model DIR -- build/millrace serve --model-path DIR --port {port} --max-total-tokens 8192
  bench/startup_bench.py --model DIR --drop-caches -- ... (as root: the weights come from the disk)
  bench/startup_bench.py --model DIR -- FIRST COMMAND -- SECOND COMMAND"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import machine_load
from runs import LISTENING, READY, add_seed, draw_seed, order_of, positive, urlopen

PATIENCE_S = 300


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(url):
    try:
        with urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def is_ready(log, url):
    text = log.read_text(errors="replace")
    return bool(READY.search(text)) if LISTENING.search(text) else answers(url + "/health")


def first_token(url):
    with urlopen(url + "/v1/models", timeout=60) as reply:
        model = json.load(reply)["data"][0]["id"]
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 1}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=PATIENCE_S) as reply:
        reply.read()


def memory(pid):
    """kB by name, of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}


def processor_time(pid):
    """Seconds of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(command):
    with tempfile.NamedTemporaryFile() as log:
        return measure_start(command, log)


def measure_start(command, log):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    start = time.monotonic()
    process = subprocess.Popen([part.replace("{port}", str(port)) for part in command], stdout=log, stderr=log)
    try:
        while not is_ready(Path(log.name), url):
            if process.poll() is not None or time.monotonic() - start > PATIENCE_S:
                sys.exit(f"startup_bench: did not start: {' '.join(command)}\n"
                         f"{Path(log.name).read_text(errors='replace')[-4000:]}")
            time.sleep(0.01)
        ready = time.monotonic() - start
        first_token(url)
        token = time.monotonic() - start
        held = memory(process.pid)
        return {"ready, s": ready, "first token, s": token, "processor, s": processor_time(process.pid),
                "peak": held["VmHWM"] * 1024, "without files": held["RssAnon"] * 1024}
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()


def spread(values):
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def split_commands(arguments):
    commands = [[]]
    for part in arguments:
        if part == "--":
            commands.append([])
        else:
            commands[-1].append(part)
    return [command for command in commands if command]


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the weights, for their size")
    parser.add_argument("--rounds", type=positive, default=5)
    add_seed(parser)
    parser.add_argument("--drop-caches", action="store_true", help="before each start, as root")
    options = parser.parse_args(sys.argv[1:split])
    commands = split_commands(sys.argv[split + 1:])
    if not commands:
        parser.error("no command after --")
    machine_load.print_load_at_exit()
    draw_seed(options)
    weights = sum(file.stat().st_size for file in options.model.glob("*.safetensors"))
    found = [[] for _ in commands]
    for number in range(1, options.rounds + 1):
        for place in order_of(range(len(commands)), options.seed, number):
            if options.drop_caches:
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("3")
            found[place].append(measure(commands[place]))
    print(f"weights: {weights / 1e6:.1f} MB; memory as parts of them")
    for command, results in zip(commands, found, strict=True):
        print(" ".join(command))
        for name in results[0]:
            values = [result[name] for result in results]
            if not name.endswith(", s"):
                values = [value / weights for value in values]
            print(f"  {name:<16}{spread(values)}")


if __name__ == "__main__":
    main()
