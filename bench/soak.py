#!/usr/bin/env python3
"""Mixed load (soak_load.py) on a real server for as long as is asked for, and whether the server grows by it.

Clients ask for whole answers and streams, choices and log probabilities, conversations, messages and responses that grow, and
vectors; leave early, read slowly, ask nonsense; an operator pauses and continues generation, flushes the cache, aborts all, looks at metrics, the
live page's data and the description. Meanwhile canaries, greedy requests whose answers were noted at the start, have to give
the same again.

Prints, each --report-every-s, what was answered and what the server holds: resident and anonymous memory, its main heap,
descriptors, threads, sequences and pages. At the end the load stops, and everything has to be back: no request,
all pages, no more descriptors and threads than before the load. Memory may have grown by --max-growth-mib at most since
the end of --warm-up-s, after which caches and pools have their size: give --serve-flags that bound them (--max-total-tokens).
Ends with 1 where something is amiss, and says what; if the server has ended, with the last lines of its log."""

import argparse
import asyncio
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from soak_load import LATE_S, Load, ask

ROOT = Path(__file__).resolve().parents[1]
SHOWN_LINES = 40


class ServerGone(Exception):
    """The server has ended."""


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "books-4m")
    parser.add_argument("--pp-size", type=int, default=2)
    parser.add_argument("--serve-flags", default="", help="further flags of the server, as one text")
    parser.add_argument("--tiers", action="store_true", help="a small device pool before a host tier and a store of files")
    parser.add_argument("--duration-s", type=float, default=1200, help="after the warm-up")
    parser.add_argument("--warm-up-s", type=float, default=120)
    parser.add_argument("--report-every-s", type=float, default=60)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--max-growth-mib", type=float, default=32)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Server:
    """The server under load; use as a context manager."""

    def __init__(self, options, folder):
        flags = ["--pp-size", options.pp_size, "--idle-timeout", 20, "--write-timeout", 5, "--max-connections", 512,
                 "--response-store-mib", 2, "--runner", "generate", "--convert", "embed"]
        if options.tiers:
            flags += ["--max-total-tokens", 8192, "--enable-hierarchical-cache", "--hicache-ratio", 2,
                      "--hicache-storage-backend", "file", "--hicache-storage-path", folder, "--hicache-storage-size", 0.2]
        flags += shlex.split(options.serve_flags)
        command = [options.build / "millrace", "serve", "--model-path", options.model, "--port", 0, *flags]
        self.command = [str(part) for part in command]
        self.log = []

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            self.log.append(line)
            match = re.search(r"listening on http://(\S+):(\d+)", line)
            if match:
                self.host, self.port = match.group(1), int(match.group(2))
                self.reader = threading.Thread(target=self._read, daemon=True)
                self.reader.start()
                return self
        sys.exit("the server ended:\n" + "".join(self.log))

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=LATE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read(self):
        for line in self.process.stdout:
            if " request id=" not in line:
                self.log = self.log[-200:] + [line]

    def resource_usage(self):
        """What the operating system says of the process: MiB and counts."""
        folder = Path("/proc") / str(self.process.pid)
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        heap_kib, in_heap = 0, False
        for line in (folder / "smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                in_heap = line.endswith("[heap]")
            elif in_heap and line.startswith("Rss:"):
                heap_kib += int(line.split()[1])
        mib = {name: int(status.get(field, "0").split()[0]) / 1024 for name, field in
               {"resident": "VmRSS", "anonymous": "RssAnon"}.items()}
        names = []
        for task in (folder / "task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                names.append((task / "comm").read_text())
        # The kernel starts and ends io_uring's workers as it likes.
        return {**mib, "heap": heap_kib / 1024, "descriptors": len(os.listdir(folder / "fd")),
                "threads": sum(not name.startswith("iou-") for name in names)}


def line_of(holds, engine, counts, elapsed_s):
    memory = ", ".join(f"{name} {holds[name]:.1f} MiB" for name in ("resident", "anonymous", "heap"))
    return (f"{elapsed_s:6.0f} s  {memory}; {holds['descriptors']} descriptors, {holds['threads']} threads; "
            f"{engine['running']} running, {engine['waiting']} waiting; pages: {engine['free_pages']} free of "
            f"{engine['total_pages']}, {engine['cached_pages']} cached, {engine['cached_host_pages']} on the host; "
            + ", ".join(f"{count} {name}" for name, count in counts.items()))


async def sleep_beside(server, seconds):
    """Until they are over; raises ServerGone when the server is."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, 1))
        if server.process.poll() is not None:
            raise ServerGone("while it was under load")


async def settle(load):
    """Waits until nothing is left of the load, and gives the state."""
    end = time.monotonic() + LATE_S
    while time.monotonic() < end:
        engine = await load.state()
        if (engine["running"] == engine["waiting"] == engine["in_flight"] == 0 and engine["connections"] == 1
                and engine["free_pages"] == engine["total_pages"]):
            return engine
        await asyncio.sleep(0.2)
    load.fault(f"{LATE_S} s after the load there is still {engine}")
    return engine


async def stop(load, tasks):
    load.stopping = True
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if ended is not None:
            load.fault(f"a client or the operator ended with {ended!r}")


async def soak(server, load, options):
    """What the server held before the load, after the warm-up and at the end."""
    end = time.monotonic() + LATE_S
    while (await ask(server, "GET", "/health"))[0] != 200 and time.monotonic() < end:
        await asyncio.sleep(0.05)
    await load.note_canaries()
    await settle(load)
    before = server.resource_usage()
    tasks = [asyncio.create_task(load.client(number)) for number in range(options.clients)]
    tasks.append(asyncio.create_task(load.operator()))
    begin = time.monotonic()
    try:
        await sleep_beside(server, options.warm_up_s)
        warm = server.resource_usage()
        print("warm:    " + line_of(warm, await load.state(), load.counts, options.warm_up_s), flush=True)
        while time.monotonic() - begin < options.warm_up_s + options.duration_s:
            await sleep_beside(server, options.report_every_s)
            print("         " + line_of(server.resource_usage(), await load.state(), load.counts, time.monotonic() - begin),
                  flush=True)
    finally:
        await stop(load, tasks)
    engine, after = await settle(load), server.resource_usage()
    print("at rest: " + line_of(after, engine, load.counts, time.monotonic() - begin), flush=True)
    return before, warm, after


def judge(before, warm, after, load, options):
    growth = after["anonymous"] - warm["anonymous"]
    print(f"anonymous memory grew by {growth:.1f} MiB after the warm-up (at most {options.max_growth_mib:g} are allowed)")
    faults = list(load.faults)
    if growth > options.max_growth_mib:
        faults.append(f"memory grew by {growth:.1f} MiB, at most {options.max_growth_mib:g} were wanted")
    for name in ("descriptors", "threads"):
        if after[name] > before[name]:
            faults.append(f"{after[name]} {name} at the end, {before[name]} before the load")
    for name in ("answered", "left", "canaries"):
        if load.counts[name] == 0:
            faults.append(f"nothing was counted as {name}")
    return faults


def run(server, options):
    """What was amiss, whatever becomes of the server."""
    load = Load(server, options)
    try:
        return judge(*asyncio.run(soak(server, load, options)), load, options)
    except (ServerGone, AssertionError, OSError, ValueError, KeyError, IndexError) as problem:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(timeout=5)  # it may be about to end
        return [*load.faults, f"the soak ended early: {problem!r}"]


def main():
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="millrace-soak-") as folder, Server(options, folder) as server:
        faults = run(server, options)
        code = server.process.poll()
        if code is not None:
            server.reader.join(timeout=5)
            faults.append(f"the server ended with {code}")
        faults += [f"log: {line.strip()}" for line in server.log if " error " in line.lower() or "failed" in line]
    if code is not None:
        print("".join(server.log[-SHOWN_LINES:]), end="")
    for fault in faults:
        print(f"amiss: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
