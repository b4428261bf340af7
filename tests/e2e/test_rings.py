"""Tests several rings in one server (--dp-size): equal texts, routes, one ring at a time for administrators, breaks."""

import re
import shutil

import pytest
from millrace_server import MODEL, ROOT, MillraceServer, run_binary, wait_until
from streams import Stream, paused_stream, paused_streams, resume

WORDS = "the sea was calm and the captain looked at the old harbour with a heavy heart while ships went by ".split()


def prompt_of(number):
    """Returns a text of several pages that shares no page with those of other numbers."""
    return f"Chapter {number}. " + " ".join(f"{word}{number}" for word in WORDS) + " and then"


def ask(server, prompt, **fields):
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, **fields}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    answer = answer.json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def health(server):
    return server.get("/health").json()


def wait_for_all_rings(server):
    wait_until(lambda: health(server) == {"status": "ok"}, "all rings serve")


@pytest.fixture(scope="module")
def dp2():
    with MillraceServer("--dp-size", 2, "--pp-size", 2, "--page-size", 16) as server:
        wait_for_all_rings(server)
        yield server


def test_every_ring_gives_the_text_of_a_single_one(dp2, pp1):
    for number in range(3):
        wanted = ask(pp1, prompt_of(number))[0]
        for rank in (0, 1):
            assert ask(dp2, prompt_of(number), routed_dp_rank=rank)[0] == wanted


def test_a_rank_that_does_not_exist_is_refused(dp2):
    answer = dp2.post("/v1/completions", {"prompt": "p", "data_parallel_rank": 2})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "data_parallel_rank"


def test_one_ring_is_flushed_and_then_all(dp2):
    def cached(number):
        return [ask(dp2, prompt_of(number), routed_dp_rank=rank)[1] > 0 for rank in (0, 1)]

    cached(10)
    assert cached(10) == [True, True]
    assert dp2.post("/flush_cache", {"ring": 1, "timeout": 10}).status_code == 200
    assert cached(10) == [True, False]
    assert dp2.post("/flush_cache", {"timeout": 10}).status_code == 200
    assert cached(10) == [False, False]


def test_conversations_stay_on_the_rings_that_know_them(dp2):
    assert dp2.post("/flush_cache", {"timeout": 10}).status_code == 200
    talks = [prompt_of(20 + i) for i in range(5)]
    before = dp2.metric("millrace:routed_requests_total", reason="prefix")
    for turn in range(3):
        for i, talk in enumerate(talks):
            text, cached = ask(dp2, talk)
            assert (cached > 0) == (turn > 0)
            talks[i] = talk + text + f" {' '.join(WORDS[:8])} {i}"
    assert dp2.metric("millrace:routed_requests_total", reason="prefix") - before == 10
    used = [dp2.metric("millrace:ring_cache_hit_pages_total", ring=ring) for ring in (0, 1)]
    assert all(pages > 0 for pages in used)


def test_metrics_name_rings_and_each_family_comes_once(dp2):
    ask(dp2, prompt_of(30), routed_dp_rank=1)
    text = dp2.get("/metrics").text
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(families) == len(set(families))
    for ring in (0, 1):
        assert dp2.metric("millrace:ring_serves", ring=ring) == 1
        assert dp2.metric("millrace:stage_busy_seconds_total", ring=ring, stage=1) > 0
    assert dp2.metric("millrace:routed_requests_total", ring=1, reason="pinned") > 0
    info = dp2.get("/server_info").json()
    assert [ring["serves"] for ring in info["rings"]] == [True, True]
    assert [node["ring"] for node in info["nodes"]] == [0, 1]


def test_the_live_page_and_profiles_show_each_ring(dp2, tmp_path):
    for ring in (0, 1):
        live = dp2.get(f"/live?ring={ring}").json()
        assert live["stage_count"] == 2
        assert [each["ring"] for each in live["rings"]] == [0, 1]
    assert dp2.get("/live?ring=2").status_code == 400


def test_profiles_are_of_one_ring_or_of_each(tmp_path):
    with MillraceServer("--dp-size", 2, "--profile-dir", tmp_path) as server:
        wait_for_all_rings(server)
        assert server.post("/start_profile", {"path": "all.json"}).status_code == 200
        assert server.post("/start_profile", {"path": "more.json", "ring": 0}).status_code == 409
        for rank in (0, 1):
            ask(server, "Once", routed_dp_rank=rank)
        stopped = server.post("/stop_profile").json()
        assert stopped["plans"] > 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["all-ring-0.json", "all-ring-1.json"]
        assert server.post("/start_profile", {"path": "one.json", "ring": 1}).json()["path"].endswith("one-ring-1.json")
        assert server.post("/stop_profile").status_code == 200


def test_a_ring_is_drained_and_restarted_while_the_other_serves(dp2):
    assert dp2.post("/restart_ring", {"ring": 1}).status_code == 409
    epochs = dp2.metric("millrace:ring_epochs_total", ring=1)
    drained = dp2.post("/drain_ring", {"ring": 1}).json()
    assert drained == {"ring": 1, "draining": True, "running": 0, "waiting": 0}
    assert dp2.post("/drain_ring", {"ring": 0}).status_code == 409
    assert health(dp2) == {"status": "degraded", "reason": "ring 1: draining"}
    routed = dp2.metric("millrace:routed_requests_total", ring=1)
    for number in range(4):
        ask(dp2, prompt_of(40 + number))
    assert dp2.metric("millrace:routed_requests_total", ring=1) == routed
    assert dp2.post("/v1/completions", {"prompt": "p", "routed_dp_rank": 1}).status_code == 503
    assert dp2.post("/restart_ring", {"ring": 1}).status_code == 200
    wait_for_all_rings(dp2)
    assert dp2.metric("millrace:ring_epochs_total", ring=1) == epochs + 1
    assert dp2.metric("millrace:ring_epochs_total", ring=0) == 1
    assert ask(dp2, prompt_of(40), routed_dp_rank=1)[0] == ask(dp2, prompt_of(40), routed_dp_rank=0)[0]


def test_a_ring_that_breaks_gives_its_queue_away():
    with MillraceServer("--dp-size", 2, "--max-running-requests", 1, "--load-balance-method", "shortest_queue") as server:
        wait_for_all_rings(server)
        running = paused_streams(server, [{"prompt": f"Chapter {rank}", "max_tokens": 900, "ignore_eos": True,
                                           "routed_dp_rank": rank} for rank in (0, 1)])
        queued = [Stream(server, f"Page {i}", max_tokens=8, ignore_eos=True) for i in range(4)]
        wait_until(lambda: server.metric("millrace:ring_requests_waiting", ring=1) == 2, "the queue")
        assert server.post("/restart_ring", {"ring": 1, "force": True}).status_code == 200
        wait_until(lambda: server.metric("millrace:ring_moved_requests_total", ring=1) == 2, "the move")
        assert "an administrator restarts it" in running[1].error()["message"]
        resume(server)
        assert running[0].finish_reason() == "length"
        assert [stream.finish_reason() for stream in queued] == ["length"] * 4
        wait_for_all_rings(server)
        assert ask(server, "Once", routed_dp_rank=1)[0]


def test_rings_on_several_nodes_are_refused():
    result = run_binary("serve", "--model-path", MODEL, "--dp-size", 2, "--pp-size", 2, "--nnodes", 2, "--dist-init-addr",
                        "127.0.0.1:30100")
    assert result.returncode == 2
    assert "--dp-size 2" in result.stderr and "--nnodes 2" in result.stderr


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A small mixture of experts with the tokenizer of another model, whose first tokens it has."""
    folder = tmp_path_factory.mktemp("mixture") / "mixture"
    shutil.copytree(ROOT / "tests/golden/qwen3moe", folder)
    for tokenizer in MODEL.glob("tokenizer*"):
        shutil.copy(tokenizer, folder)
    return folder


def ids_answer(server, number, **fields):
    body = {"prompt": [(7 * i + 31 * number) % 500 for i in range(40 + number)], "max_tokens": 16, "temperature": 0,
            "logprobs": 2, "ignore_eos": True, **fields}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize(("pp_size", "tp_size"), [(1, 2), (2, 1)])
def test_rings_that_share_experts_give_the_tokens_of_one(mixture, pp_size, tp_size):
    with MillraceServer("--device", "cpu", model=mixture) as server:
        wanted = [ids_answer(server, number) for number in range(4)]
    flags = ("--device", "cpu", "--dp-size", 2, "--pp-size", pp_size, "--tp-size", tp_size, "--enable-ep")
    with MillraceServer(*flags, model=mixture) as server:
        wait_for_all_rings(server)
        for ring in (0, 1):
            assert [ids_answer(server, number, routed_dp_rank=ring) for number in range(4)] == wanted
        for ring in (0, 1):
            assert server.metric("millrace:expert_steps_total", ring=ring, rows="some") > 0
            assert server.metric("millrace:expert_steps_total", ring=ring, rows="none") > 0


def test_a_restart_restarts_rings_that_share_experts(mixture):
    with MillraceServer("--device", "cpu", "--dp-size", 2, "--enable-ep", model=mixture) as server:
        wait_for_all_rings(server)
        wanted = ids_answer(server, 1, routed_dp_rank=0)
        stream = paused_stream(server, prompt=[5, 9, 300, 17], max_tokens=240, ignore_eos=True, routed_dp_rank=0)
        assert server.post("/restart_ring", {"ring": 1, "force": True}).status_code == 200
        assert "ring 1: " in stream.error()["message"]
        resume(server)
        wait_for_all_rings(server)
        for ring in (0, 1):
            assert server.metric("millrace:ring_epochs_total", ring=ring) == 2
            assert ids_answer(server, 1, routed_dp_rank=ring) == wanted


def test_experts_that_a_model_does_not_have_are_not_shared():
    result = run_binary("serve", "--model-path", MODEL, "--dp-size", 2, "--enable-ep", "--port", 0)
    assert result.returncode == 1
    assert "--enable-ep" in result.stderr and "no experts" in result.stderr
