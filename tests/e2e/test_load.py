"""Tests the load generator with the real server."""

import json
import signal
import socket
import subprocess

import pytest
from millrace_server import BUILD, PATIENCE_S

LOAD = BUILD / "bench" / "load"
PROMPTS = 16


def run_load(server, *flags):
    return subprocess.run([str(LOAD), "--base-url", server.url, "--quiet", *map(str, flags)], capture_output=True,
                          text=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_load_measures_a_run(pp4, tmp_path, endpoint):
    vocab_size = pp4.get("/server_info").json()["model"]["vocab_size"]
    result_file = tmp_path / "result.json"
    result = run_load(pp4, "--endpoint", endpoint, "--num-prompts", PROMPTS, "--max-concurrency", 4, "--input-len", 32,
                      "--output-len", 16, "--ignore-eos", "--warmups", 2, "--vocab-size", vocab_size,
                      "--goodput", "ttft:100000", "--result-file", result_file)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result_file.read_text())
    assert found["completed"] == PROMPTS and found["failed"] == 0
    assert found["max_running"] == 4
    assert found["counted_by_chunks"] == 0
    assert found["total_output_tokens"] == PROMPTS * 16
    assert found["total_input_tokens"] >= PROMPTS * 32
    assert found["request_goodput"] == pytest.approx(found["request_throughput"])
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for figure in ("mean", "median", "std", "p90", "p99"):
            assert found[f"{figure}_{metric}_ms"] >= 0
    for name in ("input_lens", "output_lens", "ttfts", "itls", "errors"):
        assert len(found[name]) == PROMPTS


def test_load_says_why_requests_fail(pp4):
    result = run_load(pp4, "--model", "no-such-model", "--num-prompts", 3)
    assert result.returncode == 1
    assert "3 failed: HTTP status" in result.stdout
    assert "no-such-model" in result.stdout


def test_load_without_a_server_is_one_line():
    result = subprocess.run([str(LOAD), "--base-url", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr == "load: cannot connect to 127.0.0.1:1: Connection refused\n"


def test_load_ends_by_a_signal_before_any_response():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen([str(LOAD), "--base-url", f"http://127.0.0.1:{listener.getsockname()[1]}"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(4) == b"GET "
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert errors == "load: interrupted before the measurement began\n"


def test_load_says_at_once_that_it_cannot_write_its_results(tmp_path):
    result = subprocess.run([str(LOAD), "--base-url", "http://127.0.0.1:1", "--result-file", tmp_path / "no" / "r.json"],
                            capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 1
    assert result.stderr == f"load: cannot write {tmp_path}/no/r.json\n"


def test_load_with_a_rate_says_how_late_it_was(pp4, tmp_path):
    result_file = tmp_path / "result.json"
    result = run_load(pp4, "--num-prompts", 8, "--request-rate", 50, "--max-concurrency", 1, "--input-len", 16,
                      "--output-len", 4, "--ignore-eos", "--vocab-size", 1000, "--result-file", result_file)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Sent late, at most, ms" in result.stdout
    found = json.loads(result_file.read_text())
    late = [start - due for start, due in zip(found["start_times"], found["due_times"], strict=True)]
    assert min(late) >= 0
    assert 1e3 * max(late) == pytest.approx(found["max_late_ms"], abs=0.01)
