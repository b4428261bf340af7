#!/usr/bin/env python3
"""What several rings in one server (--dp-size) bring; real servers side by side, taking turns.

  routing  conversations whose clients think between turns: the part of the prompts' tokens that was found in a cache, by
           --load-balance-method, for each number of rings of --rings. Every conversation begins with the same tokens
           (--common-len); the client counts what the server reports as cached
  memory   the server's own memory (RssAnon) once every ring has had a request: D rings against one
  speed    the load generator's requests at --concurrency: D rings of T / D threads against one ring of T threads
  apart    ring 1 of two, in the front's process and in one of its own: requests that name it, at --concurrency and one by one

All caches are flushed before each round. Prints medians and, in brackets, the least and the most; ratios are of one
round, to the state named first."""

import argparse
import contextlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import machine_load
from runs import LISTENING, add_seed, draw_seed, order_of, positive, run_quietly, seed_of, start_server, urlopen

ROOT = Path(__file__).resolve().parents[1]
START_PATIENCE_S = 600


class Server:
    """A server with some flags; use as a context manager."""

    def __init__(self, options, state, *flags):
        self.state = state
        self.command = [options.build / "millrace", "serve", "--model-path", options.model, "--port", 0,
                        *flags, *options.serve_flags]

    def __enter__(self):
        self.process, self.url = start_server(self.command, self.state, LISTENING)
        end = time.monotonic() + START_PATIENCE_S
        while self.health() != "ok":
            if time.monotonic() > end:
                sys.exit(f"the server '{self.state}' does not get ready")
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def health(self):
        try:
            return json.load(urlopen(self.url + "/health"))["status"]
        except OSError:  # 503 while it starts
            return None

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urlopen(request))

    def flush(self):
        self.post("/flush_cache", {"timeout": 60})


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class ApartServer(Server):
    """Two rings, of which the second has a process of its own."""

    def __init__(self, options, state, *flags):
        self.address = free_address()
        super().__init__(options, state, "--dp-size", 2, "--dp-size-local", 1, "--dp-address", self.address, *flags)
        self.ring_command = [options.build / "millrace", "serve", "--model-path", options.model, "--dp-rank", 1,
                             "--dp-address", self.address, *flags, *options.serve_flags]

    def __enter__(self):
        command = [str(part) for part in self.ring_command]
        self.ring = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return super().__enter__()
        except BaseException:  # sys.exit too; no __exit__ follows
            self.ring.terminate()
            self.ring.wait()
            raise

    def __exit__(self, *_):
        self.ring.terminate()
        self.ring.wait()
        super().__exit__()


class Conversation(threading.Thread):
    """A client that thinks, asks, and adds the answer and new words to its next prompt."""

    def __init__(self, server, options, common, seed):
        super().__init__()
        self.server, self.options, self.draw = server, options, random.Random(seed)
        self.prompt = list(common)
        self.prompt_tokens = self.cached_tokens = 0

    def run(self):
        for _ in range(self.options.turns):
            time.sleep(self.draw.expovariate(1 / self.options.think_s))
            words = self.draw.randint(self.options.input_len // 2, self.options.input_len * 3 // 2)
            self.prompt += [self.draw.randrange(3, self.options.vocab_size) for _ in range(words)]
            answer = self.server.post("/v1/completions", {
                "prompt": self.prompt, "max_tokens": self.options.output_len, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True})
            self.prompt_tokens += answer["usage"]["prompt_tokens"]
            self.cached_tokens += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.prompt += answer["choices"][0]["token_ids"]


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def report(values, digits, unit):
    """`values`: per state a figure per round, in the same order for all."""
    baseline = next(iter(values))
    for state, own in values.items():
        ratio = "" if state == baseline else f"  / {baseline} {spread([a / b for a, b in zip(own, values[baseline])], 2)}"
        print(f"  {state:>24}: {spread(own, digits)} {unit}{ratio}", flush=True)


def cached_part(server, options, seed):
    server.flush()
    draw = random.Random(seed)
    common = [draw.randrange(3, options.vocab_size) for _ in range(options.common_len)]
    clients = [Conversation(server, options, common, f"{seed} {number}") for number in range(options.conversations)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return sum(client.cached_tokens for client in clients) / sum(client.prompt_tokens for client in clients)


def bench_routing(options):
    for rings in options.rings:
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(Server(options, method, "--dp-size", rings, "--load-balance-method", method))
                       for method in ("round_robin", "shortest_queue", "cache_aware")]
            found = {server.state: [] for server in servers}
            for number in range(1, options.rounds + 1):
                for server in order_of(servers, options.seed, number):
                    found[server.state].append(cached_part(server, options, seed_of(options.seed, rings, number)))
        print(f"{rings} rings, {options.conversations} conversations of {options.turns} turns, "
              f"{options.common_len} common tokens: part of the prompts' tokens found in a cache, {options.rounds} rounds")
        report(found, 3, "")


def own_megabytes(server, rings):
    """Returns the memory of the process that no file backs: packed weights, activations, scratch, used pages."""
    for ring in range(rings):
        pinned = {"routed_dp_rank": ring} if rings > 1 else {}
        server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 1, **pinned})
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status).group(1)) / 1024


def bench_memory(options):
    counts = (1, *options.rings)
    found = {f"{rings} rings": [] for rings in counts}
    for _ in range(options.rounds):
        for rings in counts:
            with Server(options, f"{rings} rings", "--dp-size", rings) as server:
                found[server.state].append(own_megabytes(server, rings))
    print(f"memory of the server, {options.rounds} starts")
    report(found, 1, "MiB")


def tokens_per_second(server, options, seed):
    server.flush()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run_quietly([options.build / "bench" / "load", "--base-url", server.url, "--quiet", "--ignore-eos", "--result-file",
                     file.name, "--num-prompts", options.requests, "--max-concurrency", options.concurrency, "--input-len",
                     options.input_len, "--output-len", options.output_len, "--vocab-size", options.vocab_size, "--seed", seed])
        result = json.load(file)
    return result["output_throughput"], 1e3 * statistics.median(result["ttfts"])


def bench_speed(options):
    threads = options.threads
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(options, f"{rings} x {threads // rings} threads", "--dp-size", rings, "--threads",
                                              threads)) for rings in (1, *options.rings)]
        speeds, ttfts = ({server.state: [] for server in servers} for _ in range(2))
        for number in range(options.rounds + 1):
            for server in order_of(servers, options.seed, number):
                speed, ttft = tokens_per_second(server, options, seed_of(options.seed, number))
                if number > 0:  # the first round warms up
                    speeds[server.state].append(speed)
                    ttfts[server.state].append(ttft)
    print(f"{options.requests} requests of {options.input_len} in and {options.output_len} out, {options.concurrency} at a time, "
          f"{options.rounds} rounds")
    report(speeds, 0, "output tokens/s")
    report(ttfts, 1, "ms to the first token")


def ask_ring(server, options, seed, output_len):
    """Asks ring 1 for a prompt of its own, and returns the answer's tokens."""
    draw = random.Random(seed)
    prompt = [draw.randrange(3, options.vocab_size) for _ in range(options.input_len)]
    answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": output_len, "temperature": 0,
                                             "ignore_eos": True, "routed_dp_rank": 1})
    return answer["usage"]["completion_tokens"]


def bench_apart(options):
    threads = max(options.threads // 2, 1)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(options, "in the process", "--dp-size", 2, "--threads", 2 * threads)),
                   stack.enter_context(ApartServer(options, "in another", "--threads", threads))]
        speeds, single_ms = ({server.state: [] for server in servers} for _ in range(2))
        for number in range(options.rounds + 1):
            for server in order_of(servers, options.seed, number):
                server.flush()
                begin = time.monotonic()
                with ThreadPoolExecutor(options.concurrency) as clients:
                    tokens = sum(clients.map(lambda one: ask_ring(server, options, seed_of(options.seed, number, one),
                                                                  options.output_len), range(options.requests)))
                seconds = time.monotonic() - begin
                times = []
                for one in range(50):
                    begin = time.monotonic()
                    ask_ring(server, options, seed_of(options.seed, number, "single", one), 1)
                    times.append(1e3 * (time.monotonic() - begin))
                if number > 0:  # the first round warms up
                    speeds[server.state].append(tokens / seconds)
                    single_ms[server.state].append(statistics.median(times))
    print(f"ring 1 of 2 with {threads} threads: {options.requests} requests of {options.input_len} in and {options.output_len} "
          f"out, {options.concurrency} at a time, {options.rounds} rounds")
    report(speeds, 0, "output tokens/s")
    report(single_ms, 2, "ms of a request of one token, alone")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["routing", "memory", "speed", "apart"])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder (millrace and bench/load)")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "books-4m")
    parser.add_argument("--rings", nargs="+", type=positive, default=[2], help="numbers of rings")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--conversations", type=positive, default=32, help="routing")
    parser.add_argument("--turns", type=positive, default=6, help="routing: of each conversation")
    parser.add_argument("--think-s", type=float, default=0.2, help="routing: mean seconds before a turn")
    parser.add_argument("--common-len", type=int, default=32, help="routing: tokens with which every conversation begins")
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)), help="speed, apart: of each server")
    parser.add_argument("--requests", type=positive, default=128, help="speed, apart: of a round")
    parser.add_argument("--concurrency", type=positive, default=32, help="speed, apart: clients")
    parser.add_argument("--input-len", type=positive, default=48, help="mean tokens of a turn, or of a prompt")
    parser.add_argument("--output-len", type=positive, default=24)
    parser.add_argument("--vocab-size", type=int, default=2000, help="prompts are token ids below this")
    add_seed(parser)
    parser.add_argument("--serve-flags", type=str.split, default=["--page-size", "16"],
                        help="more flags for every server, in one string")
    options = parser.parse_args()
    for program in (options.build / "millrace", options.build / "bench" / "load"):
        if not program.exists():
            parser.error(f"{program} is not built")
    machine_load.print_load_at_exit()
    draw_seed(options)
    print(f"{options.what}, {options.model.name}, {' '.join(options.serve_flags)}", flush=True)
    {"routing": bench_routing, "memory": bench_memory, "speed": bench_speed, "apart": bench_apart}[options.what](options)


if __name__ == "__main__":
    main()
