#!/usr/bin/env python3
"""Real servers side by side under the load generator: what dividing a model over stages costs and brings.

  partition   --pp-layer-partition even against auto, under one load of prompts and decode steps: tokens per second, and
              how evenly the stages were busy, which other load on the machine distorts less
  scaling     two stages of one core each against one stage of one core: long prompts, then decode at batch 16, with
              both stages in one process, in two processes over TCP on loopback, and, as root, in two network
              namespaces 1 Gbit/s and 2 ms apart each way, by netem, or by bench/slow_link where the kernel has none
              (--network). Efficiency: the ratio of tokens per second, over two
  flags       a server with each --with FLAGS against one without

All servers of a comparison run at once, idle but for the one that is measured; they take turns, --rounds times, after
one turn that does not count, with prompts that no cache knows. Prints medians and, in brackets, the least and the most.
The load generator shares the cores with the servers: it takes about 4 us per token."""

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START_PATIENCE_S = 300
LISTENING = re.compile(r"listening on (http://\S+)")

LOADS = {
    "prefill": ["--max-concurrency", "4", "--output-len", "1"],  # and --prompts of --prompt-len
    "decode": ["--num-prompts", "16", "--max-concurrency", "16", "--input-len", "8", "--output-len", "32"],
    "mixed": ["--num-prompts", "16", "--max-concurrency", "16", "--input-len", "64", "--output-len", "32"],
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ring:
    """The processes of one server; use as a context manager. One command per node: (prefix, flags)."""

    def __init__(self, name, options, nodes, client_prefix=()):
        self.name, self.options, self.nodes, self.client_prefix = name, options, nodes, list(client_prefix)
        self.processes, self.url = [], None
        self.log = tempfile.TemporaryFile("w+")

    def __enter__(self):
        for prefix, flags in reversed(self.nodes):
            command = [*prefix, str(self.options.build / "millrace"), "serve", "--model-path", str(self.options.model),
                       "--port", "0", *self.options.serve_flags, *flags]
            self.processes.append(subprocess.Popen([str(part) for part in command], stdout=self.log, stderr=self.log))
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self):
        end = time.monotonic() + START_PATIENCE_S
        while time.monotonic() < end:
            if any(process.poll() is not None for process in self.processes):
                break
            found = LISTENING.search(self.text())
            self.url = found.group(1) if found else None
            if self.url and self._healthy():
                return
            time.sleep(0.1)
        sys.exit(f"ring_bench: {self.name} did not start:\n{self.text()}")

    def _healthy(self):
        done = subprocess.run([*self.client_prefix, sys.executable, "-c", HEALTH_CHECK, self.url + "/health"])
        return done.returncode == 0

    def text(self):
        self.log.flush()
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text(errors="replace")

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()

    def tokens_per_second(self, load, seed):
        prompts = ["--num-prompts", str(self.options.prompts), "--input-len", str(self.options.prompt_len)]
        with tempfile.NamedTemporaryFile() as result:
            subprocess.run([*self.client_prefix, str(self.options.build / "bench" / "load"), "--base-url", self.url,
                            "--result-file", result.name, "--ignore-eos", "--quiet", "--seed", str(seed), *LOADS[load],
                            *(prompts if load == "prefill" else [])], check=True, stdout=subprocess.DEVNULL, timeout=600)
            report = json.loads(Path(result.name).read_text())
        return report["output_throughput" if load == "decode" else "total_token_throughput"]


HEALTH_CHECK = """
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=5)
except OSError:
    sys.exit(1)
"""


def run(line):
    subprocess.run(line.split(), check=True, capture_output=True)


def has_netem():
    """Tried out on the loopback of a namespace of its own."""
    name = f"millrace-bench-{os.getpid()}-probe"
    run(f"ip netns add {name}")
    probe = subprocess.run(f"tc -n {name} qdisc add dev lo root netem delay 2ms".split(), capture_output=True)
    run(f"ip netns del {name}")
    return probe.returncode == 0


@contextlib.contextmanager
def cable(kind, names, build):
    """Joins two namespaces by a device 'ring' in each."""
    if kind == "relay":
        # Ahead of what computes, as the kernel's own queues are.
        relay = subprocess.Popen(["nice", "-n", "-10", str(build / "bench" / "slow_link"), *names, "--rate-mbit",
                                  "1000", "--delay-ms", "2"], stdout=subprocess.PIPE, text=True)
        try:
            if relay.stdout.readline() != "ready\n":
                sys.exit("ring_bench: bench/slow_link did not start")
            for name in names:
                # Large packets, as offloads make them: at 1500 bytes the relay would handle 83000 a second.
                run(f"ip -n {name} link set ring mtu 32000")
            yield
        finally:
            relay.terminate()
            relay.wait()
        return
    run(f"ip -n {names[0]} link add ring type veth peer name ring netns {names[1]}")
    for name in names:
        if kind == "netem":
            run(f"tc -n {name} qdisc add dev ring root netem rate 1gbit delay 2ms limit 100000")
        else:
            run(f"tc -n {name} qdisc add dev ring root tbf rate 1gbit burst 256kb latency 100ms")
    yield


NETWORKS = {"netem": "1 Gbit/s, 2 ms", "relay": "1 Gbit/s, 2 ms, relay", "rate": "1 Gbit/s, no delay"}


@contextlib.contextmanager
def two_namespaces(kind, build):
    """Two hosts, node 0 at 10.79.0.1 and node 1 at 10.79.0.2; their prefixes, and what is between them."""
    names = [f"millrace-bench-{os.getpid()}-{rank}" for rank in range(2)]
    if kind == "auto":
        kind = "netem" if has_netem() else "relay"
    try:
        for name in names:
            run(f"ip netns add {name}")
            run(f"ip -n {name} link set lo up")
        with cable(kind, names, build):
            for rank, name in enumerate(names):
                run(f"ip -n {name} addr add 10.79.0.{rank + 1}/24 dev ring")
                run(f"ip -n {name} link set ring up")
            yield [["ip", "netns", "exec", name] for name in names], NETWORKS[kind]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def two_nodes(name, options, host, prefixes, client_prefix=()):
    place = ["--nnodes", 2, "--dist-init-addr", f"{host}:{free_port()}", "--threads", 1]
    nodes = [([*prefixes[rank], "taskset", "-c", options.cores[rank]], [*place, "--node-rank", rank, "--pp-size", 2])
             for rank in range(2)]
    return Ring(name, options, nodes, client_prefix)


def measure(rings, load, rounds):
    """tokens/s per ring and round; the rings take turns."""
    values = {ring.name: [] for ring in rings}
    for number in range(rounds + 1):
        for ring in rings:
            speed = ring.tokens_per_second(load, number)
            if number > 0:
                values[ring.name].append(speed)
    return values


def busy_balance(ring):
    """Mean over slowest of the stages' busy seconds."""
    with urllib.request.urlopen(ring.url + "/metrics", timeout=30) as answer:
        busy = [float(value) for value in
                re.findall(r"millrace:stage_busy_seconds_total\{[^}]*\} (\S+)", answer.read().decode())]
    return statistics.mean(busy) / max(busy)


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def report(load, values, baseline, divisor):
    print(f"{load}: tokens/s, and the ratio to '{baseline}'" + (f" over {divisor}" if divisor != 1 else ""))
    for name, speeds in values.items():
        ratios = [speed / other / divisor for speed, other in zip(speeds, values[baseline])]
        shown = "" if name == baseline else spread(ratios, 3)
        print(f"  {name:24} {spread(speeds, 0):28} {shown}", flush=True)


def bench_partition(options):
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(Ring(kind, options, [([], ["--pp-size", options.pp_size, "--threads",
                                                                len(options.cores), "--pp-layer-partition", kind])]))
                 for kind in ("even", "auto")]
        print(re.search(r"--pp-layer-partition auto: .*", rings[1].text()).group(0))
        for load in options.loads or ["mixed", "decode"]:
            report(load, measure(rings, load, options.rounds), "even", 1)
        for ring in rings:
            print(f"  {ring.name:24} mean over slowest stage's busy time {busy_balance(ring):.3f}")


def bench_scaling(options):
    one_core, both = options.cores[0], ",".join(options.cores)
    with contextlib.ExitStack() as stack:
        rings = [Ring("pp 1, one core", options, [(["taskset", "-c", one_core], ["--pp-size", 1, "--threads", 1])]),
                 Ring("pp 2, one process", options, [(["taskset", "-c", both], ["--pp-size", 2, "--threads", 2])]),
                 two_nodes("pp 2, TCP on loopback", options, "127.0.0.1", [[], []])]
        if os.geteuid() == 0 and not options.no_namespaces:
            prefixes, network = stack.enter_context(two_namespaces(options.network, options.build))
            rings.append(two_nodes(f"pp 2, {network}", options, "10.79.0.1", prefixes, prefixes[0]))
        for ring in rings:
            stack.enter_context(ring)
        for load in options.loads or ["prefill", "decode"]:
            report(load, measure(rings, load, options.rounds), "pp 1, one core", 2)


def bench_flags(options):
    plain = ["--pp-size", options.pp_size, "--threads", len(options.cores)]
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(Ring(more or "plain", options, [([], [*plain, *more.split()])]))
                 for more in ["", *options.more]]
        for load in options.loads or ["prefill", "decode"]:
            report(load, measure(rings, load, options.rounds), "plain", 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["partition", "scaling", "flags"])
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "books-4m",
                        help="folder of the model; tools/make_random_checkpoint.py makes ones of real shapes")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder (millrace and bench/load)")
    parser.add_argument("--prompts", type=int, default=16, help="of the load prefill")
    parser.add_argument("--prompt-len", type=int, default=1000,
                        help="tokens of a prompt; longer ones, where the model takes them, fill the ring for longer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pp-size", type=int, default=2, help="partition and flags only")
    parser.add_argument("--with", dest="more", metavar="FLAGS", action="append", default=[],
                        help="flags: of the other server, in one string; several servers by several of them")
    parser.add_argument("--cores", type=lambda text: text.split(","), default=["0", "1"], help="CPUs of the stages")
    parser.add_argument("--loads", nargs="+", choices=LOADS, help="other loads than the usual ones")
    parser.add_argument("--no-namespaces", action="store_true", help="scaling without the slow network")
    parser.add_argument("--network", choices=["auto", *NETWORKS], default="auto",
                        help="between the namespaces: netem, relay (bench/slow_link), or the rate without the delay")
    parser.add_argument("--serve-flags", type=str.split, default=[], help="more flags for every server, in one string")
    options = parser.parse_args()
    for program in (options.build / "millrace", options.build / "bench" / "load", options.build / "bench" / "slow_link"):
        if not program.exists():
            parser.error(f"{program} is not built")
    {"partition": bench_partition, "scaling": bench_scaling, "flags": bench_flags}[options.what](options)


if __name__ == "__main__":
    main()
