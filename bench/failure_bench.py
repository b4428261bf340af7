#!/usr/bin/env python3
"""How soon a ring over several processes on this machine says that one of them is gone, and serves again.

Node 0, with the head, stays; each other node in turn is killed (SIGKILL) and started anew, then stopped (SIGSTOP) and
continued, --rounds times, while --streams requests are being answered. Printed per node and kind of failure, as median
with the least and the most: the time from the signal to the first 503 of /health, polled every 5 ms, and from the node's
start, or its continuation, to the first 200. A start includes the loading of the node's weights."""

import argparse
import http.client
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import machine_load

from ring_bench import ROOT, free_port, spread
from runs import LISTENING, positive, urlopen

POLL_S = 0.005
START_PATIENCE_S = 300


class Nodes:
    """The processes of one ring; use as a context manager."""

    def __init__(self, options):
        self.options, self.processes, self.url = options, {}, None
        self.address = f"127.0.0.1:{free_port()}"
        self.log = tempfile.NamedTemporaryFile("w+")

    def start(self, rank):
        flags = ["--pp-size", self.options.nodes, "--port", 0] if rank == 0 else []
        command = [self.options.build / "millrace", "serve", "--model-path", self.options.model, "--nnodes",
                   self.options.nodes, "--node-rank", rank, "--dist-init-addr", self.address, "--threads", 1, *flags]
        self.processes[rank] = subprocess.Popen([str(part) for part in command], stdout=self.log, stderr=self.log)

    def __enter__(self):
        try:
            for rank in range(self.options.nodes):
                self.start(rank)
            self.wait(lambda: LISTENING.search(Path(self.log.name).read_text()), "the head listening")
            self.url = LISTENING.search(Path(self.log.name).read_text()).group(1)
            self.wait(lambda: self.health() == 200, "the ring forming")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def health(self):
        try:
            with urlopen(self.url + "/health", timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as refusal:
            return refusal.code

    def wait(self, condition, what):
        """Seconds until `condition()`."""
        begin = time.monotonic()
        while not condition():
            if time.monotonic() - begin > START_PATIENCE_S or self.processes[0].poll() is not None:
                sys.exit(f"failure_bench: {what} did not happen:\n{Path(self.log.name).read_text()[-4000:]}")
            time.sleep(POLL_S)
        return time.monotonic() - begin

    def fail_and_return(self, rank, how):
        """(seconds to 503, seconds from the return to 200)"""
        if how == "killed":
            self.processes[rank].kill()
        else:
            self.processes[rank].send_signal(signal.SIGSTOP)
        noticed = self.wait(lambda: self.health() == 503, f"the head noticing that node {rank} is {how}")
        if how == "killed":
            self.processes[rank].wait()
            self.start(rank)
        else:
            self.processes[rank].send_signal(signal.SIGCONT)
        return noticed, self.wait(lambda: self.health() == 200, "the ring forming again")


def send_continuously(nodes, over):
    """A stream after another, whatever comes of it."""
    body = {"prompt": "Call me Ishmael.", "max_tokens": 400, "ignore_eos": True, "stream": True}
    while not over.is_set():
        request = urllib.request.Request(nodes.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=60) as answer:
                answer.read()
        except (OSError, http.client.HTTPException):
            over.wait(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "books-4m")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--nodes", type=int, default=3, help="processes, a stage each")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rounds", type=positive, default=10)
    options = parser.parse_args()
    if options.nodes < 2:
        parser.error(f"--nodes {options.nodes}: wanted at least 2, since the head's stays")
    machine_load.print_load_at_exit()
    times = {(rank, how): [] for rank in range(1, options.nodes) for how in ("killed", "stopped")}
    with Nodes(options) as nodes:
        over = threading.Event()
        clients = [threading.Thread(target=send_continuously, args=(nodes, over)) for _ in range(options.streams)]
        for client in clients:
            client.start()
        try:
            for _ in range(options.rounds):
                for (rank, how), measured in times.items():
                    time.sleep(0.5)
                    measured.append(nodes.fail_and_return(rank, how))
        finally:
            over.set()
            for client in clients:
                client.join()
    for (rank, how), measured in times.items():
        to_503, to_200 = zip(*measured)
        print(f"node {rank} {how:8} 503 after {spread(to_503, 3)} s, 200 again after {spread(to_200, 3)} s")


if __name__ == "__main__":
    main()
