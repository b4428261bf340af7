#!/usr/bin/env python3
"""What the prefix cache and its tiers bring, and what they cost; real servers side by side, taking turns.

  tiers          one prompt at a time: its time to first token when it is computed, or found on the device, the host or in
                 the store
  shared-prefix  the load generator's prompts in groups that begin alike; each round has other prompts with the same
                 prefixes
  multi-turn     the load generator's conversations; the time to first token is that of the turns after the first
  second-turn    conversations one after the other: a prompt, its output, and then both with more tokens. Prints the
                 time to first token of the second turn as a share of the first one's. With host or store the
                 conversations of a round must exceed --small-pool
  overhead       prompts of which nothing is ever found, with the tree and without, request by request: CPU time and time
                 to the hundredth or so (cache_overhead.py says how); on a pool that is always full, or never (--pool)

The states are servers of their own: plain (--disable-radix-cache), device (the tree alone), host (behind a device that
holds --small-pool tokens, fewer than all prompts have), store (files, behind such a device and a host twice as
large; forgotten on both before each round of tiers and shared-prefix, and before second turns). They take turns in changing order. Ratios are of one round, to the state named first.
Prints medians and, in brackets, the least and the most; and the pages found on each tier."""

import argparse
import contextlib
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cache_overhead
import machine_load
from runs import READY, add_seed, draw_seed, order_of, positive, start_server

ROOT = Path(__file__).resolve().parents[1]
TIERS = {"device": "kv_cache_device_hit_pages_total", "host": "kv_cache_host_hit_pages_total",
         "store": "kv_cache_fetched_pages_total"}


class Server:
    """A server of one state; use as a context manager."""

    def __init__(self, options, state, folder):
        flags = ["--pp-size", options.pp_size, *options.serve_flags]
        if state == "plain":
            flags += ["--disable-radix-cache"]
        if options.what == "overhead" and options.pool == "full":
            flags += ["--max-total-tokens", options.small_pool]
        if state in ("host", "store"):
            flags += ["--max-total-tokens", options.small_pool, "--enable-hierarchical-cache",
                      "--hicache-ratio", 16 if state == "host" else 2]
        if state == "store":
            flags += ["--hicache-storage-backend", "file", "--hicache-storage-path", folder,
                      "--hicache-storage-prefetch-policy", "wait_complete"]
        self.state, self.options = state, options
        self.command = [options.build / "millrace", "serve", "--model-path", options.model, "--port", 0, *flags]

    def __enter__(self):
        # A health check would compete with the start and with the other servers, so that the log says when it is ready.
        self.process, url = start_server(self.command, self.state, READY)
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.host, self.port = host, int(port)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        connection.request(method, path, json.dumps(body) if body is not None else None,
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def metric(self, name):
        found = re.search(rf"^millrace:{name}(?:{{.*}})? (\S+)$", self.request("GET", "/metrics")[1], re.MULTILINE)
        return float(found.group(1))

    def forget(self):
        """What is known on device and host, once the store has it."""
        while self.metric("kv_cache_persisted_pages_total") < (self.metric("kv_cache_stored_pages_total") -
                                                               self.metric("kv_cache_unpersisted_pages_total")):
            time.sleep(0.05)
        status, text = self.request("POST", "/flush_cache", {"timeout": 60})
        if status != 200:
            sys.exit(f"/flush_cache: {status}: {text}")

    def first_token_s(self, prompt):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True, "ignore_eos": True}
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"status {answer.status}: {answer.read().decode()}")
        first_event(answer)
        seconds = time.perf_counter() - begin
        answer.read()
        return seconds

    def cpu_s(self):
        """The CPU time of all threads, to the nanosecond."""
        return time.clock_gettime((~self.process.pid << 3) | 2)  # what clock_getcpuclockid(3) gives

    def answer_to(self, prompt, output_len):
        """Seconds to the first token, the server's processor time until then, and the tokens of the output."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        body = {"prompt": prompt, "max_tokens": output_len, "temperature": 0, "stream": True, "ignore_eos": True,
                "return_token_ids": True}
        begin, cpu_begin = time.perf_counter(), self.cpu_s()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"status {answer.status}: {answer.read().decode()}")
        line = first_event(answer)
        seconds, cpu_s = time.perf_counter() - begin, self.cpu_s() - cpu_begin
        tokens = []
        for line in [line, *answer]:
            if line.startswith(b"data: {"):
                tokens += [token for choice in json.loads(line[6:])["choices"] for token in choice.get("token_ids") or []]
        if len(tokens) != output_len:
            sys.exit(f"an output of {len(tokens)} tokens, wanted {output_len}")
        return seconds, cpu_s, tokens

    def load(self, *flags):
        """The load generator's result file."""
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [self.options.build / "bench" / "load", "--base-url", f"http://{self.host}:{self.port}", "--quiet",
                       "--ignore-eos", "--result-file", file.name, *flags]
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
            return json.load(file)


def first_event(answer):
    """The first line with a token. Comments come before it, every few seconds, while a prompt is computed."""
    for line in answer:
        if line.startswith(b"data: {"):
            if b'"choices"' not in line:
                sys.exit(line.decode())
            return line
    sys.exit("a stream without a token")


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def report(title, unit, values, digits=1):
    """`values`: per state a figure per round or prompt, in the same order for all."""
    print(title)
    baseline = next(iter(values))
    for state, own in values.items():
        ratio = "" if state == baseline else f"  / {baseline} {spread([a / b for a, b in zip(own, values[baseline])], 3)}"
        print(f"  {state:>7}: {spread(own, digits)} {unit}{ratio}", flush=True)


def report_hits(servers):
    for server in servers:
        if server.state != "plain":
            print(f"  {server.state:>7}: pages found " +
                  ", ".join(f"{tier} {server.metric(name):.0f}" for tier, name in TIERS.items()))


def bench_tiers(options, servers):
    draw = random.Random(options.seed)
    prompts = [[draw.randrange(3, options.vocab_size) for _ in range(options.prompt_len)] for _ in range(options.prompts)]
    for server in servers:
        for prompt in prompts:
            server.first_token_s(prompt)
    times = {server.state: [] for server in servers}
    for number in range(1, options.rounds + 1):
        for server in servers:
            if server.state == "store":
                server.forget()
        for prompt in prompts:
            for server in order_of(servers, options.seed, number):
                times[server.state].append(1e3 * server.first_token_s(prompt))
    report(f"time to first token, {options.prompts} prompts of {options.prompt_len} tokens, {options.rounds} rounds", "ms",
           times)


def bench_second_turn(options, servers):
    figures = ("first, ms", "second, ms", "share, %", "share of processor time, %")
    values = {(server.state, figure): [] for server in servers for figure in figures}
    for number in range(1, options.rounds + 1):
        draw = random.Random(f"{options.seed} {number}")
        prompts = [[draw.randrange(3, options.vocab_size) for _ in range(options.prompt_len)]
                   for _ in range(options.prompts)]
        more = [draw.randrange(3, options.vocab_size) for _ in range(options.input_len)]
        for server in order_of(servers, options.seed, number):
            answers = [server.answer_to(prompt, options.output_len) for prompt in prompts]
            if server.state == "store":
                server.forget()
            for prompt, (first_s, first_cpu_s, output) in zip(prompts, answers):
                second_s, second_cpu_s, _ = server.answer_to(prompt + output + more, 1)
                own = (1e3 * first_s, 1e3 * second_s, 100 * second_s / first_s, 100 * second_cpu_s / first_cpu_s)
                for figure, value in zip(figures, own):
                    values[server.state, figure].append(value)
    print(f"time to first token of {options.prompts} conversations of {options.prompt_len} tokens, then "
          f"{options.output_len} of output and {options.input_len} more, {options.rounds} rounds")
    for (state, figure), own in values.items():
        print(f"  {state:>7}, {figure}: {spread(own, 2)}", flush=True)


def bench_load(options, servers, title, flags, chosen):
    """A round that does not count, then --rounds; `chosen` picks the requests of a result whose times are taken."""
    ttfts, speeds = ({server.state: [] for server in servers} for _ in range(2))
    for number in range(options.rounds + 1):
        for server in order_of(servers, options.seed, number):
            if server.state == "store" and options.what == "shared-prefix":
                server.forget()
            result = server.load(*flags, "--seed", options.seed + number + 1, "--max-concurrency", options.concurrency,
                                 "--output-len", options.output_len, "--vocab-size", options.vocab_size)
            if number == 0:
                continue
            ttfts[server.state].append(1e3 * statistics.median(chosen(result["ttfts"])))
            speeds[server.state].append(result["total_token_throughput"])
    report(f"{title}: median time to first token, {options.rounds} rounds", "ms", ttfts)
    report(f"{title}: tokens per second, {options.rounds} rounds", "tokens/s", speeds, 0)


def bench_shared_prefix(options, servers):
    bench_load(options, servers, f"{options.requests} prompts of {options.prefix_len} shared and {options.input_len} own tokens",
               ["--dataset", "shared-prefix", "--num-prompts", options.requests, "--num-prefixes", options.prefixes,
                "--prefix-len", options.prefix_len, "--input-len", options.input_len, "--prefix-seed", options.seed],
               lambda ttfts: ttfts)


def bench_multi_turn(options, servers):
    conversations = options.requests // options.turns
    bench_load(options, servers, f"{conversations} conversations of {options.turns} turns of {options.input_len} words",
               ["--dataset", "multi-turn", "--num-prompts", conversations * options.turns, "--num-turns", options.turns,
                "--input-len", options.input_len], lambda ttfts: ttfts[conversations:])


BENCHES = {"tiers": bench_tiers, "second-turn": bench_second_turn, "shared-prefix": bench_shared_prefix,
           "multi-turn": bench_multi_turn}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*BENCHES, "overhead"])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder (millrace and bench/load)")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "books-4m",
                        help="folder of the model; tools/make_random_checkpoint.py makes ones of real shapes")
    parser.add_argument("--pp-size", type=positive, default=1)
    parser.add_argument("--states", nargs="+", choices=["plain", *TIERS],
                        help="default: all; overhead has its own")
    parser.add_argument("--rounds", type=positive, default=3, help="overhead starts its servers anew for each")
    parser.add_argument("--small-pool", type=positive, default=4096, help="tokens on the device of the states host and store, and of overhead's full pool")
    parser.add_argument("--prompts", type=positive, default=6, help="tiers, second-turn: prompts")
    parser.add_argument("--prompt-len", type=positive, default=850, help="tiers, second-turn, overhead: tokens of a prompt")
    parser.add_argument("--requests", type=positive, default=64, help="of a round of the load generator")
    parser.add_argument("--concurrency", type=positive, default=4)
    parser.add_argument("--prefixes", type=positive, default=12, help="shared-prefix: groups")
    parser.add_argument("--prefix-len", type=positive, default=640, help="shared-prefix: tokens")
    parser.add_argument("--turns", type=positive, default=4, help="multi-turn: of each conversation")
    parser.add_argument("--input-len", type=int,
                        help="own tokens of a prompt (shared-prefix, default 64), of the second turn (64), words of a turn (multi-turn, 160)")
    parser.add_argument("--output-len", type=positive, default=16)
    parser.add_argument("--vocab-size", type=int, default=2000, help="prompts are token ids below this")
    parser.add_argument("--pool", choices=["full", "roomy"], default="full",
                        help="overhead: every request evicts, or none (the tree is forgotten in time)")
    parser.add_argument("--turns-of-round", type=positive, default=300, help="overhead: requests to each server")
    parser.add_argument("--batch", type=positive, default=1, help="overhead: prompts of a request")
    parser.add_argument("--warm-up", type=int, default=20, help="overhead: requests that do not count")
    parser.add_argument("--settle-ms", type=float, default=3, help="overhead: until a server that has answered is idle")
    add_seed(parser)
    parser.add_argument("--serve-flags", type=str.split, default=[], help="more flags for every server, in one string")
    options = parser.parse_args()
    options.input_len = options.input_len or (160 if options.what == "multi-turn" else 64)
    states = options.states or ["plain", *TIERS]
    tokens = options.prompts * (options.prompt_len + options.output_len)
    if options.what == "second-turn" and {"host", "store"} & set(states) and tokens <= options.small_pool:
        parser.error(f"--prompts and --prompt-len: conversations of {tokens} tokens fit --small-pool "
                     f"{options.small_pool}, so that nothing is on the host")
    for program in (options.build / "millrace", options.build / "bench" / "load"):
        if not program.exists():
            parser.error(f"{program} is not built")
    machine_load.print_load_at_exit()
    draw_seed(options)
    if options.what == "overhead":
        print(f"overhead, {options.model.name}, pp {options.pp_size}, a {options.pool} pool", flush=True)
        cache_overhead.run(options, lambda state: Server(options, state, None))
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(options, state, folder)) for state in states]
        print(f"{options.what}, {options.model.name}, pp {options.pp_size}")
        BENCHES[options.what](options, servers)
        report_hits(servers)


if __name__ == "__main__":
    main()
