"""Tests the command lines of bench/, the code that its scripts share, and their errors. Nothing is measured here."""

import argparse
import contextlib
import http.server
import json
import subprocess
import sys
import threading
import time

import pytest
from millrace_server import BUILD, MODEL, PATIENCE_S, ROOT

BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import runs  # noqa: E402


def run_script(name, *arguments, **options):
    return subprocess.run([sys.executable, str(BENCH / name), *map(str, arguments)], capture_output=True, text=True,
                          timeout=PATIENCE_S, **options)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_orders_are_drawn_and_mirrored(count):
    contenders = list(range(count))
    for seed in range(20):
        orders = [runs.order_of(contenders, seed, number) for number in range(1, 13)]
        assert orders == [runs.order_of(contenders, seed, number) for number in range(1, 13)]
        assert all(sorted(order) == contenders for order in orders)
        for forth, back in zip(orders[::2], orders[1::2], strict=True):
            assert back == forth[::-1]
    if count > 2:
        assert len({tuple(runs.order_of(contenders, seed, 1)) for seed in range(20)}) > 2


def test_every_run_has_its_own_seed():
    seeds = {runs.seed_of(seed, load, number) for seed in range(50) for load in ("prefill", "decode") for number in range(20)}
    assert len(seeds) == 50 * 2 * 20
    assert all(0 <= seed < 2**53 for seed in seeds)


@pytest.mark.parametrize("script, arguments", [
    ("versus.py", ["http://127.0.0.1:1", "http://127.0.0.1:1"]), ("ring_bench.py", ["flags"]), ("cache_bench.py", ["tiers"]),
    ("rings_bench.py", ["routing"]),
    ("prediction_bench.py", ["--model", "nowhere"]), ("startup_bench.py", ["--model", "nowhere"]), ("failure_bench.py", [])])
def test_no_rounds_are_an_error_of_the_command_line(script, arguments):
    done = run_script(script, *arguments, "--rounds", 0)
    assert done.returncode == 2
    assert "argument --rounds: found '0', wanted a whole number above 0" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", "²"])
def test_counts_are_whole_numbers(text):
    assert runs.positive("12") == 12
    with pytest.raises(argparse.ArgumentTypeError):
        runs.positive(text)


@pytest.mark.parametrize("load", ["prefill", "hogs", "beside", "prefill-0", "nonsense-3"])
def test_versus_refuses_unknown_loads(load):
    done = run_script("versus.py", "http://127.0.0.1:1", "http://127.0.0.1:1", "--loads", load)
    assert done.returncode == 2
    assert f"no load is called '{load}'" in done.stderr


def test_versus_says_why_a_load_failed():
    done = run_script("versus.py", "http://127.0.0.1:1", "http://127.0.0.1:1", "--build", BUILD)
    assert done.returncode == 1
    assert "load: cannot connect to 127.0.0.1:1: Connection refused" in done.stderr
    assert "Traceback" not in done.stderr


class FakeServerHandler(http.server.BaseHTTPRequestHandler):
    """Answers with completions of one token and records each prompt with its server."""

    protocol_version = "HTTP/1.1"

    def answer(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        self.answer("application/json", json.dumps({"data": [{"id": "fake"}]}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.server.name, tuple(body["prompt"])))
        token = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}
        usage = {"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": 2}}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in (json.dumps(token), json.dumps(token), json.dumps(usage), "[DONE]"):
            self.wfile.write(f"data: {event}\n\n".encode())
            time.sleep(0.001 if body["max_tokens"] < 256 else 0.4)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def fake_servers(names):
    """Yields the addresses of servers and the list of their (server, prompt) in order."""
    seen, servers = [], []
    for name in names:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeServerHandler)
        server.name, server.seen = name, seen
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    try:
        yield [f"http://127.0.0.1:{server.server_port}" for server in servers], seen
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def test_versus_alternates_which_server_is_first():
    with fake_servers(["first", "second"]) as (urls, seen):
        done = run_script("versus.py", *urls, "--build", BUILD, "--loads", "prefill-64", "--rounds", 4, "--seed", 5)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--seed 5\n")
    begun = [server for server, _ in seen[6::6]]  # three prompts each, after the warm-up
    assert len(begun) == 4 and begun[0] != begun[1] and begun[2] != begun[3]


def test_versus_sends_no_prompt_twice():
    with fake_servers(["first", "second"]) as (urls, seen):
        done = run_script("versus.py", *urls, "--build", BUILD, "--loads", "beside-64", "prefill-64", "--rounds", 1)
    assert done.returncode == 0, done.stderr
    for name in ("first", "second"):
        prompts = [prompt[:16] for server, prompt in seen if server == name]  # prefix caches match beginnings
        assert len(set(prompts)) == len(prompts)


def test_a_start_is_timed_by_the_log():
    command = [BUILD / "millrace", "serve", "--model-path", MODEL, "--port", "{port}"]
    for extra in ([], ["--log-json"]):
        done = run_script("startup_bench.py", "--model", MODEL, "--rounds", 1, "--", *command, *extra)
        assert done.returncode == 0, done.stderr
        assert "  ready, s " in done.stdout
    failed = run_script("startup_bench.py", "--model", MODEL, "--rounds", 1, "--", *command, "--no-such-flag")
    assert failed.returncode == 1
    assert "--no-such-flag" in failed.stderr.split("\n", 1)[1], failed.stderr  # the server's own message


def run_program(name, *arguments):
    return subprocess.run([BUILD / "bench" / name, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)


PROGRAMS = ["control_bench", "cpu_attention", "cpu_matmul", "cpu_sample", "front_bench", "kernel_turns", "link_bench", "load",
            "prefix_bench", "ring_stats_bench", "scheduler_bench", "slow_link", "store_bench", "store_wait", "tokenizer_bench"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_says_what_it_measures(name):
    done = run_program(name, "--help")
    assert done.returncode == 0 and len(done.stdout) > 80, done.stdout + done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("name, arguments, said", [
    ("control_bench", ["--rounds", "0"], "--rounds"), ("control_bench", ["--plans", "0"], "--plans"),
    ("link_bench", ["--rounds", "0"], "--rounds"), ("link_bench", ["--plan-count", "0"], "--plan-count"),
    ("front_bench", ["3", "64"], "TOKENS"), ("front_bench", ["3", "64", "0"], "TOKENS"),
    ("ring_stats_bench", ["--rounds", "0"], "--rounds"),
    ("tokenizer_bench", ["nowhere", "--", __file__], "nowhere"),
    ("cpu_matmul", ["--isa", "sse"], "--isa: found 'sse'"), ("cpu_attention", ["--dtype", "int4"], "--dtype: found 'int4'"),
    ("cpu_attention", ["--weights", "w8"], "--weights"), ("cpu_sample", ["--dtype", "f32"], "--dtype"),
    ("cpu_sample", ["--clock", "cpu", "--threads", "1,2"], "--threads: found '2'"), ("cpu_matmul", ["--runs"], "--runs")])
def test_programs_refuse_what_they_cannot_measure(name, arguments, said):
    done = run_program(name, *arguments)
    assert done.returncode > 0
    assert said in done.stderr
