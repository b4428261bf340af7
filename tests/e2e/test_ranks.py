"""Tests stages of several tensor-parallel ranks through HTTP: equal words, cache tiers, metrics and refusals."""

import json
import time

import pytest
from conftest import client_of
from millrace_ring import Ring
from millrace_server import MODEL, MillraceServer, run_binary
from prompts import PROMPTS, SAMPLINGS, ids_of, with_ids
from ring_client import long_stream, same_answers
from stolen_time import StolenTime
from test_cache import PROMPTS as BOOKS
from test_cache import SMALL_POOL, ask, metric, plain, texts, wait_for_persisted  # noqa: F401 (plain is a fixture)


@pytest.mark.parametrize(("pp_size", "tp_size"), [(1, 2), (2, 2), (1, 4)])
def test_ranks_give_the_tokens_of_one(pp1, pp_size, tp_size):
    with MillraceServer("--pp-size", pp_size, "--tp-size", tp_size) as ranks:
        for index, sampling in enumerate(SAMPLINGS.values()):
            request = {"model": MODEL.name, "prompt": PROMPTS[index % len(PROMPTS)], "max_tokens": 24, "logprobs": 1,
                       **with_ids(sampling)}
            answers = [client_of(server).completions.create(**request).choices[0] for server in (pp1, ranks)]
            assert ids_of(answers[0]) == ids_of(answers[1])
            assert answers[0].logprobs.token_logprobs == answers[1].logprobs.token_logprobs
        assert ranks.get("/server_info").json()["model"]["rank_count"] == tp_size
        for stage in range(pp_size):
            for rank in range(tp_size):
                assert metric_of(ranks, "rank_busy_seconds_total", stage, rank) > 0


def metric_of(server, name, stage, rank):
    return server.metric(f"millrace:{name}", stage=stage, rank=rank)


def test_ranks_evict_to_the_host_and_load_back(plain):  # noqa: F811
    flags = ("--enable-hierarchical-cache", "--hicache-ratio", "4", "--tp-size", "2", "--pp-size", "2")
    with MillraceServer(*SMALL_POOL, *flags) as server:
        for _ in range(3):
            assert texts(server) == plain
        assert metric(server, "kv_cache_host_hit_pages_total") > 0


def test_stores_of_ranks_outlive_a_restart_at_one_tp_size(plain, tmp_path):  # noqa: F811
    flags = ("--page-size", "16", "--enable-hierarchical-cache", "--hicache-storage-backend", "file",
             "--hicache-storage-path", str(tmp_path / "pages"), "--hicache-storage-prefetch-policy", "wait_complete")
    with MillraceServer(*flags, "--tp-size", 2) as server:
        assert texts(server) == plain
        wait_for_persisted(server)
        for rank in (0, 1):
            assert metric_of(server, "page_store_written_total", 0, rank) > 0
    with MillraceServer(*flags, "--tp-size", 2) as server:
        answers = [ask(server, prompt) for prompt in BOOKS]
        assert [text for text, _ in answers] == plain
        assert all(cached > 0 for _, cached in answers)
        for rank in (0, 1):
            assert metric_of(server, "page_store_hits_total", 0, rank) > 0
    with MillraceServer(*flags, "--tp-size", 1) as server:
        answers = [ask(server, prompt) for prompt in BOOKS]
        assert [text for text, _ in answers] == plain
        assert all(cached == 0 for _, cached in answers)


def test_a_trace_has_a_row_for_each_rank(tmp_path):
    with MillraceServer("--tp-size", 2, "--profile-dir", tmp_path) as server:
        assert server.post("/start_profile", {"path": "ranks.json"}).status_code == 200
        ask(server, BOOKS[0])
        assert server.post("/stop_profile").status_code == 200
    events = json.loads((tmp_path / "ranks.json").read_text())
    assert "stage 0 rank 1" in [event["args"].get("name") for event in events if event["name"] == "thread_name"]
    runs = [event for event in events if event["args"].get("rank") == 1]
    assert runs
    assert len(runs) == len([event for event in events if "sent_bytes" in event["args"]])
    assert "stage 0" in run_binary("trace", tmp_path / "ranks.json").stdout


def test_sizes_that_do_not_fit_are_refused_by_their_flags():
    refused = run_binary("serve", "--model-path", MODEL, "--port", 0, "--tp-size", 3)
    assert refused.returncode == 2 and "--tp-size" in refused.stderr
    refused = run_binary("serve", "--model-path", MODEL, "--port", 0, "--tp-size", 2, "--pp-size", 2, "--nnodes", 3,
                         "--node-rank", 0, "--dist-init-addr", "127.0.0.1:1")
    assert refused.returncode != 0
    assert "--tp-size 2" in refused.stderr and "--nnodes 3" in refused.stderr


@pytest.mark.parametrize(("nodes", "pp_size", "tp_size"), [(2, 2, 2), (2, 1, 2), (4, 2, 2), (2, 1, 4)])
def test_ranks_on_several_nodes_answer_as_one_process(pp1, nodes, pp_size, tp_size):
    with Ring(nodes, pp_size, "--tp-size", tp_size) as ring:
        same_answers(ring, pp1)
        placed = [(node["first_stage"], node["stage_count"], node["first_rank"], node["rank_count"])
                  for node in ring.server.get("/server_info").json()["nodes"]]
        width = pp_size * tp_size // nodes
        wanted = [(stage, 1, rank, min(width, tp_size)) for stage in range(pp_size) for rank in range(0, tp_size, width)]
        assert placed == wanted


@pytest.fixture(scope="module")
def four_nodes():
    with Ring(4, 2, "--tp-size", 2) as ring:
        yield ring


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_killed_rank_breaks_the_ring_in_time_and_returns(pp1, four_nodes, victim):
    ring = four_nodes
    ring.wait_until_whole()
    streams = [long_stream(ring) for _ in range(2)]
    for stream in streams:
        stream.wait_for_text()
    with StolenTime() as stolen:
        begin = time.monotonic()
        ring.nodes[victim].kill()
        ring.wait_until_broken()
        took_s = time.monotonic() - begin
    reason = ring.server.get("/health").text
    ring.start_node(victim)
    assert took_s - stolen.seconds < 2, f"{took_s:.2f} s, {stolen.seconds:.2f} of them stolen"
    for stream in streams:
        finished, message = stream.end()
        assert finished or "the ring is broken" in message
    # Whichever connection ends first names the rank, or the stage of a leader with its address.
    node = f"node {victim} of 4 (stage {victim // 2}, ranks {victim % 2} to {victim % 2})"
    assert node in reason or "rank" in reason or f"stage {victim // 2} at" in reason
    ring.wait_until_whole()
    same_answers(ring, pp1)


def scores_of(server):
    request = {"model": MODEL.name, "prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "logprobs": 1}
    return client_of(server).completions.create(**request).choices[0].logprobs.token_logprobs


def test_sums_rounded_to_bf16_change_scores_a_little(pp1):
    exact = scores_of(pp1)
    with Ring(2, 1, "--tp-size", 2, "--tp-reduce-dtype", "bf16") as ring:
        rounded = scores_of(ring.server)
        assert scores_of(ring.server) == rounded
    assert rounded[0] != exact[0]
    assert rounded[0] == pytest.approx(exact[0], abs=0.2)
    with MillraceServer("--tp-size", 2, "--tp-reduce-dtype", "bf16") as server:
        assert scores_of(server) == exact
