"""Tests `millrace simulate` with the description of a real server."""

import json
import re
import subprocess

import pytest
from millrace_server import BUILD, ROOT, MillraceServer, run_binary, wait_until

LOAD = BUILD / "bench" / "load"


def described(server, folder, load=lambda: None):
    """Returns the description of a server once its predictions are near. A stalling machine needs more `load`."""
    def is_there():
        load()
        return server.get("/cost_model").status_code == 200

    wait_until(is_there, "the description of the ring")
    path = folder / "cluster.json"
    path.write_text(server.get("/cost_model").text)
    return path


def test_a_served_load_is_replayed_over_the_servers_description(tmp_path):
    with MillraceServer("--pp-size", 2, "--chunking", "balanced") as server:
        cluster = described(server, tmp_path)  # from the startup profile only
        run = tmp_path / "run.json"
        subprocess.run([LOAD, "--base-url", server.url, "--quiet", "--num-prompts", "12", "--max-concurrency", "3",
                        "--input-len", "100", "--range-ratio", "0.5", "--output-len", "8", "--ignore-eos",
                        "--result-file", run], check=True, stdout=subprocess.DEVNULL)
        served = json.loads(run.read_text())
    description = json.loads(cluster.read_text())
    assert len(description["stages"]) == 2 and all(stage["per_token_us"] > 0 for stage in description["stages"])
    assert description["processors"] > 0 and description["page_count"] > 0
    assert set(description["contention"]) == {"prompt_by_prompt", "prompt_by_other", "other_by_prompt", "other_by_other"}
    assert all(0 <= part <= 1 for part in description["contention"].values())
    assert description["head_latency_us"] > 0

    rows = tmp_path / "rows.json"
    simulated = run_binary("simulate", "--cluster", cluster, "--requests", run, "--chunking", "fixed,balanced",
                           "--chunked-prefill-size", 512, "--result-file", rows)
    assert simulated.returncode == 0, simulated.stderr
    for row in json.loads(rows.read_text()):
        assert row["pp_size"] == 2
        tokens = row["input_throughput"] * row["duration"]
        assert round(tokens) == sum(served["input_lens"])

    trace = tmp_path / "trace.json"
    for chunking in ("fixed", "balanced"):  # balanced chunks are profiled before the workload
        traced = run_binary("simulate", "--cluster", cluster, "--requests", run, "--chunking", chunking,
                            "--chunked-prefill-size", 512, "--trace", trace)
        assert traced.returncode == 0, traced.stderr
        report = run_binary("trace", trace)
        assert report.returncode == 0, report.stderr
        tokens = re.search(r"\((\d+) prefill and (\d+) decode tokens\) on 2 stages", report.stdout)
        assert int(tokens[1]) == sum(served["input_lens"])
        assert int(tokens[2]) == sum(length - 1 for length in served["output_lens"])
        assert "missing" not in report.stdout and "ends early" not in report.stdout

    other = run_binary("simulate", "--cluster", cluster, "--pp-size", 4, "--input-len", 100)
    assert other.returncode != 0 and "2 measured stages" in other.stderr


def test_a_ring_without_a_profile_describes_itself_after_load(tmp_path):
    with MillraceServer("--chunking", "fixed") as server:
        answer = server.get("/cost_model")
        assert answer.status_code == 503 and "8 micro-batches" in answer.json()["error"]["message"]

        def some_load():
            assert server.post("/v1/completions", {"prompt": "Call me", "max_tokens": 20}).status_code == 200

        described(server, tmp_path, some_load)


def describe(folder, **fields):
    path = folder / "described.json"
    path.write_text(json.dumps({"layers": 3, "layer": {"per_token_us": 10}, "page_size": 16, "page_count": 1000,
                                "context_length": 16000} | fields))
    return path


def test_an_impossible_sweep_is_refused_at_once(tmp_path):
    few = describe(tmp_path)
    load = ("--num-prompts", 1, "--input-len", 100)
    rows = tmp_path / "rows.json"
    swept = run_binary("simulate", "--cluster", few, *load, "--sweep", "--chunked-prefill-size", 512, "--result-file", rows)
    assert swept.returncode == 0, swept.stderr
    assert {row["pp_size"] for row in json.loads(rows.read_text())} == {1, 2}
    for given, told in ((("--pp-size", "2,4"), "4 pipeline stages for 3 layers"),
                        (("--pp-size", "2", "--trace", tmp_path / "none" / "trace.json"), "cannot be written")):
        refused = run_binary("simulate", "--cluster", few, *load, *given)
        assert refused.returncode != 0 and told in refused.stderr
        assert "time s" not in refused.stdout


def test_a_setting_whose_requests_fail_says_why_and_never_wins(tmp_path):
    plot = tmp_path / "plot.svg"
    failed = run_binary("simulate", "--cluster", describe(tmp_path, slowness=[1, 1e9]), "--num-prompts", 1, "--input-len", 1000,
                        "--pp-size", "1,2", "--chunked-prefill-size", "512,1024", "--plot", plot)
    assert failed.returncode != 0
    assert "2 requests ended with an error" in failed.stderr and "stage 1 has been running plan" in failed.stderr
    assert "fastest at pp 1" in failed.stdout and "fastest at pp 2" not in failed.stdout and "inf" not in failed.stdout
    assert plot.read_text().endswith("</svg>\n")


@pytest.mark.parametrize("flags", [("--prefix-len", 4294967295), ("--output-len", 0), ("--num-prompts", 0),
                                   ("--request-rate", "1e-300"), ("--goal-ttft", "nan"), ("--goal-tpot", -1)])
def test_flags_of_a_workload_are_bounded(tmp_path, flags):
    refused = run_binary("simulate", "--cluster", describe(tmp_path), "--input-len", 10, *flags)
    assert refused.returncode != 0 and flags[0] in refused.stderr


def test_a_sweep_says_which_setting_is_the_fastest(tmp_path):
    rows, plot = tmp_path / "rows.json", tmp_path / "plot.svg"
    sizes = [2048, 6144]
    swept = run_binary("simulate", "--cluster", ROOT / "bench/clusters/h20-qwen3-235b.json", "--sweep", "--num-prompts", 2,
                       "--input-len", 20000, "--output-len", 2, "--chunked-prefill-size", ",".join(map(str, sizes)),
                       "--result-file", rows, "--plot", plot)
    assert swept.returncode == 0, swept.stderr
    rows = json.loads(rows.read_text())
    assert len(rows) == 4 * (1 + 3 + 3) * len(sizes)  # smoothing does not apply to fixed chunks
    assert {row["chunk_size"] for row in rows} == set(sizes)
    for pp_size in (1, 2, 4, 8):
        best = min((row for row in rows if row["pp_size"] == pp_size), key=lambda row: row["duration"])
        words = f"--chunking {best['chunking']} --chunked-prefill-size {best['chunk_size']}"
        assert f"fastest at pp {pp_size}: {best['duration']:.2f} s with {words}" in swept.stdout
    assert [plot.read_text().count(f"{chunking} at its best") for chunking in ("fixed", "published", "balanced")] == [1] * 3
