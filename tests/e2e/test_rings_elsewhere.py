"""Tests a front whose second ring runs in another process: equal outputs, constraints, aborts, deaths, drains, metrics,
live page, profiles."""

import json
import re
import shutil
import signal

import pytest
from browser import Browser, find_chromium
from millrace_ring import free_port
from millrace_server import BINARY, MODEL, ROOT, MillraceServer, run_binary, wait_until
from node_process import NodeProcess
from ring_process import DividedServer, RingProcess
from streams import Stream, pause, paused_stream, paused_streams, resume
from test_page import text_of
from test_rings import ask, health, ids_answer, mixture, prompt_of  # noqa: F401 (a fixture)

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 2, 3]}},
          "required": ["name", "age"], "additionalProperties": False}


@pytest.fixture(scope="module")
def divided():
    with DividedServer("--page-size", 16, "--device", "cpu") as server:
        yield server


def test_a_ring_in_another_process_gives_equal_text(divided, pp1):
    for number in range(3):
        wanted = ask(pp1, prompt_of(number))[0]
        sampled = ask(pp1, prompt_of(number), temperature=0.9, seed=number)[0]
        for rank in (0, 1):
            assert ask(divided, prompt_of(number), routed_dp_rank=rank)[0] == wanted
            assert ask(divided, prompt_of(number), routed_dp_rank=rank, temperature=0.9, seed=number)[0] == sampled
    wanted = ids_answer(pp1, 5)
    assert ids_answer(divided, 5, routed_dp_rank=1) == wanted


def test_prompts_are_cached_in_another_process(divided):
    assert ask(divided, prompt_of(7), routed_dp_rank=1)[1] == 0
    assert ask(divided, prompt_of(7), routed_dp_rank=1)[1] > 0
    assert divided.post("/flush_cache", {"ring": 1, "timeout": 10}).status_code == 200
    assert ask(divided, prompt_of(7), routed_dp_rank=1)[1] == 0


def test_streams_come_in_parts_from_another_process(divided, pp1):
    stream = Stream(divided, prompt_of(8), max_tokens=24, ignore_eos=True, routed_dp_rank=1)
    assert stream.finish_reason() == "length"
    text = "".join(event["choices"][0]["text"] for event in stream.events if event["choices"])
    assert text == ask(pp1, prompt_of(8), max_tokens=24, ignore_eos=True)[0]
    assert len(stream.events) > 1


def test_constraints_hold_in_another_process(divided, pp1):
    constraints = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}},
        {"structured_outputs": {"regex": "[ab]{3}-[0-9]{4}"}},
        {"structured_outputs": {"choice": ["north", "south"]}},
    ]
    for constraint in constraints:
        texts = [ask(server, prompt_of(9), max_tokens=200, **constraint, **rank)[0]
                 for server, rank in ((pp1, {}), (divided, {"routed_dp_rank": 0}), (divided, {"routed_dp_rank": 1}))]
        assert texts[0] == texts[1] == texts[2]
    person = json.loads(ask(divided, prompt_of(9), max_tokens=200, routed_dp_rank=1, **constraints[0])[0])
    assert person["age"] in (1, 2, 3)
    assert re.fullmatch("[ab]{3}-[0-9]{4}", ask(divided, prompt_of(9), max_tokens=200, routed_dp_rank=1,
                                                **constraints[1])[0])


def test_an_administrator_aborts_in_another_process(divided):
    stream = paused_stream(divided, ring=1, prompt=prompt_of(10), max_tokens=900, ignore_eos=True, routed_dp_rank=1)
    assert divided.post("/abort_request", {"abort_all": True, "ring": 1}).status_code == 200
    resume(divided, ring=1)
    assert stream.finish_reason() == "abort"


def test_metrics_of_another_process_have_its_ring(divided):
    ask(divided, prompt_of(11), routed_dp_rank=1)
    wait_until(lambda: divided.metric("millrace:stage_busy_seconds_total", ring=1) > 0, "the metrics of ring 1")
    text = divided.get("/metrics").text
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(families) == len(set(families))
    assert divided.metric("millrace:routed_requests_total", ring=1, reason="pinned") > 0
    info = divided.get("/server_info").json()
    assert [node["ring"] for node in info["nodes"]] == [0, 1]


def plans_in(path):
    """Returns the numbers of the plans that stage 0 computes in a trace."""
    return {event["args"]["plan"] for event in json.loads(path.read_text())
            if event["ph"] == "X" and event["args"].get("stage") == 0}


def test_a_ring_in_another_process_shows_itself(divided):
    ask(divided, prompt_of(13), routed_dp_rank=1, max_tokens=30, ignore_eos=True)
    wait_until(lambda: divided.get("/live?ring=1").json()["decode_tokens"] >= 29, "the figures of ring 1")
    live = divided.get("/live?ring=1").json()
    assert live["stage_count"] == 1 and live["ready"]
    assert [each["ring"] for each in live["rings"]] == [0, 1]
    newest = live["plans"][-1]["number"]
    ask(divided, prompt_of(14), routed_dp_rank=1)
    wait_until(lambda: divided.get(f"/live?ring=1&since={newest}").json()["plans"], "newer micro-batches")
    later = divided.get(f"/live?ring=1&since={newest}").json()
    assert later["plans"][0]["number"] == newest + 1
    assert later["now_us"] > live["now_us"] and later["started_us"] == live["started_us"]
    wait_until(lambda: divided.get("/cost_model?ring=1").status_code == 200, "the costs of ring 1")
    assert len(divided.get("/cost_model?ring=1").json()["stages"]) == 1


def test_profiles_of_rings_elsewhere_lie_with_the_front(tmp_path):
    with DividedServer("--profile-dir", tmp_path) as server:
        assert server.post("/start_profile", {"path": "run.json"}).status_code == 200
        assert server.post("/start_profile", {"path": "more.json", "ring": 1}).status_code == 409
        for rank in (0, 1):
            ask(server, prompt_of(rank), routed_dp_rank=rank, max_tokens=40, ignore_eos=True)
        stopped = server.post("/stop_profile").json()
        assert [path.rsplit("/", 1)[1] for path in stopped["paths"]] == ["run-ring-0.json", "run-ring-1.json"]
        assert stopped["lost_plans"] == 0
        for number in (0, 1):
            assert len(plans_in(tmp_path / f"run-ring-{number}.json")) >= 40
            report = run_binary("trace", tmp_path / f"run-ring-{number}.json")
            assert report.returncode == 0, report.stderr
        assert server.post("/start_profile", {"path": "lost.json", "ring": 1}).status_code == 200
        ask(server, prompt_of(3), routed_dp_rank=1)
        wait_until(lambda: len(server.get("/live?ring=1").json()["plans"]) > 50, "the micro-batches")
        server.ring.signal(signal.SIGKILL)
        wait_until(lambda: health(server)["status"] == "degraded", "the loss")
        live = server.get("/live?ring=1")
        assert live.status_code == 503 and "ring 1: gone" in live.json()["error"]["message"]
        stopped = server.post("/stop_profile").json()
        assert stopped["plans"] >= 10
        assert plans_in(tmp_path / "lost-ring-1.json")
        everything = server.post("/start_profile", {})
        assert everything.status_code == 503 and "ring 1: gone" in everything.json()["error"]["message"]


@pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
def test_the_page_shows_a_ring_in_another_process(divided):
    with Browser() as page:
        page.open(divided.url + "/")
        wait_until(lambda: text_of(page, "state") == "serving", "the page's state")
        page.evaluate("$('ring').value = '1'; $('ring').dispatchEvent(new Event('change'))")
        seen = page.evaluate("plans.length")
        ask(divided, prompt_of(15), routed_dp_rank=1, max_tokens=40, ignore_eos=True)
        wait_until(lambda: page.evaluate("plans.length") > seen + 30, "the micro-batches of ring 1")
        assert page.evaluate("view.boxes.length") > 0
        assert page.evaluate("spark.flat().every(rate => rate >= 0)")
        assert text_of(page, "state") == "serving"
        assert page.errors == []


def test_a_ring_in_another_process_is_drained_and_restarted(divided):
    assert divided.post("/drain_ring", {"ring": 1}).json()["draining"]
    assert health(divided) == {"status": "degraded", "reason": "ring 1: draining"}
    assert divided.post("/v1/completions", {"prompt": "p", "routed_dp_rank": 1}).status_code == 503
    assert ask(divided, prompt_of(12))[0]
    assert divided.post("/undrain_ring", {"ring": 1}).status_code == 200
    assert ask(divided, prompt_of(12), routed_dp_rank=1)[0]
    assert divided.post("/drain_ring", {"ring": 1}).status_code == 200
    assert divided.post("/restart_ring", {"ring": 1}).status_code == 200
    divided.wait_for_all_rings()
    assert ask(divided, prompt_of(12), routed_dp_rank=1)[0] == ask(divided, prompt_of(12), routed_dp_rank=0)[0]


def test_a_killed_ring_gives_its_queue_away():
    with DividedServer("--max-running-requests", 1, "--load-balance-method", "shortest_queue") as server:
        running = paused_streams(server, [{"prompt": f"Chapter {rank}", "max_tokens": 900, "ignore_eos": True,
                                           "routed_dp_rank": rank} for rank in (0, 1)])
        queued = [Stream(server, f"Page {i}", max_tokens=8, ignore_eos=True) for i in range(4)]
        wait_until(lambda: server.metric("millrace:ring_requests_waiting", ring=1) == 2, "the queue")
        server.ring.signal(signal.SIGKILL)
        assert "ring 1: " in running[1].error()["message"]
        resume(server)
        assert running[0].finish_reason() == "length"
        assert [stream.finish_reason() for stream in queued] == ["length"] * 4
        assert health(server)["status"] == "degraded"
        server.ring.wait()
        server.start_ring()
        server.wait_for_all_rings()
        assert ask(server, "Once", routed_dp_rank=1)[0] == ask(server, "Once", routed_dp_rank=0)[0]


def test_a_ring_that_is_told_to_end_finishes_its_requests():
    with DividedServer() as server:
        running = paused_stream(server, ring=1, prompt="Chapter 1", max_tokens=300, ignore_eos=True, routed_dp_rank=1)
        server.ring.signal(signal.SIGTERM)  # which ends the pause
        assert running.finish_reason() == "length"
        assert server.ring.wait() == 0, server.ring.log()
        wait_until(lambda: health(server)["status"] == "degraded", "the departure")
        assert ask(server, "Once")[0]


def test_the_own_ring_of_a_front_may_have_several_nodes(pp1):
    address = f"127.0.0.1:{free_port()}"
    node = NodeProcess([BINARY, "serve", "--model-path", MODEL, "--nnodes", 2, "--node-rank", 1, "--dist-init-addr", address,
                        "--threads", 1])
    try:
        with DividedServer(front_flags=("--pp-size", 2, "--nnodes", 2, "--node-rank", 0, "--dist-init-addr", address)) as server:
            wanted = ask(pp1, prompt_of(20))[0]
            assert [ask(server, prompt_of(20), routed_dp_rank=rank)[0] for rank in (0, 1)] == [wanted] * 2
            assert [server.get(f"/live?ring={ring}").json()["stage_count"] for ring in (0, 1)] == [2, 1]
            node.signal(signal.SIGKILL)
            wait_until(lambda: health(server)["status"] == "degraded", "the loss of ring 0's node")
            assert ask(server, prompt_of(20))[0] == wanted
    finally:
        node.kill()


def test_a_ring_of_another_model_or_arithmetic_is_refused(divided, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(ROOT / "tests/golden/qwen3", other)
    for tokenizer in MODEL.glob("tokenizer*"):
        shutil.copy(tokenizer, other)
    for flags, model, reason in ((("--page-size", 16), other, "its model has fingerprint"),
                                 (("--page-size", 16, "--dtype", "f32"), MODEL, "it computes in f32"),
                                 (("--page-size", 32), MODEL, "its --page-size is 32")):
        ring = RingProcess(divided.address, 1, "--device", "cpu", *flags, model=model)
        try:
            wait_until(lambda ring=ring, reason=reason: reason in ring.log(), f"the refusal: {reason}")
            wait_until(lambda reason=reason: any(reason in line for line in divided.output), "the front's refusal")
            assert health(divided) == {"status": "ok"}
        finally:
            ring.kill()


def test_flags_of_rings_in_several_processes_must_agree():
    for flags, words in ((("--dp-rank", 1), "--dp-address"),
                         (("--dp-size", 2, "--dp-size-local", 1), "--dp-address"),
                         (("--dp-size", 2, "--dp-size-local", 3), "--dp-size-local 3"),
                         (("--dp-size", 2, "--nnodes", 2, "--dist-init-addr", "h:1"), "--dp-size-local 1"),
                         (("--dp-address", "h:1"), "--dp-rank"),
                         (("--dp-rank", 1, "--dp-address", "h:1", "--dp-size", 2), "one ring"),
                         (("--dp-rank", 1, "--dp-address", "h:1", "--enable-ep"), "the front's --dp-size"),
                         (("--dp-rank", 2, "--dp-address", "h:1", "--enable-ep", "--dp-size", 2), "below --dp-size 2")):
        result = run_binary("serve", "--model-path", MODEL, *flags)
        assert result.returncode == 2
        assert words in result.stderr


@pytest.mark.parametrize(("pp_size", "tp_size"), [(1, 1), (2, 2)])
def test_processes_that_share_experts_give_the_tokens_of_one(mixture, pp_size, tp_size):  # noqa: F811
    with MillraceServer("--device", "cpu", model=mixture) as server:
        wanted = [ids_answer(server, number) for number in range(4)]
    flags = ("--device", "cpu", "--pp-size", pp_size, "--tp-size", tp_size, "--enable-ep")
    with DividedServer(*flags, model=mixture) as server:
        for ring in (0, 1):
            assert [ids_answer(server, number, routed_dp_rank=ring) for number in range(4)] == wanted
        for ring in (0, 1):
            wait_until(lambda ring=ring: server.metric("millrace:expert_steps_total", ring=ring, rows="some") > 0, "steps")
            wait_until(lambda ring=ring: server.metric("millrace:expert_steps_total", ring=ring, rows="none") > 0, "steps")
        for paused in (0, 1):  # a paused ring steps along
            pause(server, paused)
            assert ids_answer(server, 1, routed_dp_rank=1 - paused) == wanted[1]
            resume(server, paused)


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_ends_those_that_share_its_experts(mixture, way):  # noqa: F811
    with DividedServer("--device", "cpu", "--ring-timeout", 3, "--enable-ep", model=mixture) as server:
        wanted = ids_answer(server, 1, routed_dp_rank=0)
        stream = paused_stream(server, ring=0, prompt=[5, 9, 300, 17], max_tokens=240, ignore_eos=True, routed_dp_rank=0)
        server.ring.signal(way)
        assert "ring 1: " in stream.error()["message"]
        wait_until(lambda: server.get("/health").status_code == 503, "that no ring serves")
        assert server.post("/v1/completions", {"prompt": "p"}).status_code == 503
        resume(server)
        if way == signal.SIGKILL:
            server.ring.wait()
            server.start_ring()
        else:
            server.ring.signal(signal.SIGCONT)
        server.wait_for_all_rings()
        for ring in (0, 1):
            assert ids_answer(server, 1, routed_dp_rank=ring) == wanted


def test_a_process_with_shared_experts_that_drains(mixture):  # noqa: F811
    with DividedServer("--device", "cpu", "--enable-ep", model=mixture) as server:
        running = paused_stream(server, ring=1, prompt=[5, 9, 300, 17], max_tokens=200, ignore_eos=True, routed_dp_rank=1)
        server.ring.signal(signal.SIGTERM)  # which ends the pause
        assert running.finish_reason() == "length"
        assert server.ring.wait() == 0, server.ring.log()
        resume(server)  # the front would pause the ring again when it returns
        server.start_ring()
        server.wait_for_all_rings()
        assert ids_answer(server, 1, routed_dp_rank=1) == ids_answer(server, 1, routed_dp_rank=0)


def test_a_ring_with_another_division_of_experts_is_refused(mixture):  # noqa: F811
    with DividedServer("--device", "cpu", "--enable-ep", model=mixture) as server:
        for flags, reason in (((), "it shares no experts"),
                              (("--enable-ep", "--dp-size", 4), "among 4 rings"),
                              (("--enable-ep", "--dp-size", 2, "--chunked-prefill-size", 64), "rows each")):
            ring = RingProcess(server.address, 1, "--device", "cpu", *flags, model=mixture)
            try:
                wait_until(lambda ring=ring, reason=reason: reason in ring.log(), f"the refusal: {reason}")
                wait_until(lambda reason=reason: any(reason in line for line in server.output), "the front's refusal")
                assert health(server) == {"status": "ok"}
            finally:
                ring.kill()


class RingsOverNodes:
    """Two rings with shared experts, each over two nodes, as a context manager."""

    def __init__(self, model, *flags, device=("--device", "cpu"), worker_flags=()):
        self.model = model
        self.worker_flags = (*device, *worker_flags)
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.workers = [None, None]
        nodes = [("--node-rank", 0, "--dist-init-addr", address) for address in self.addresses]
        self.server = DividedServer(*device, "--ring-timeout", 1.5, "--enable-ep", "--nnodes", 2, *flags,
                                    front_flags=nodes[0], other_flags=nodes[1], model=model)

    def start_worker(self, ring):
        self.workers[ring] = NodeProcess(
            [BINARY, "serve", "--model-path", self.model, "--nnodes", 2, "--node-rank", 1, "--dist-init-addr",
             self.addresses[ring], "--ring-timeout", 1.5, "--threads", 1, *self.worker_flags])

    def __enter__(self):
        for ring in (0, 1):
            self.start_worker(ring)
        try:
            self.server.__enter__()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.server.__exit__(None, None, None)
        self.end()

    def end(self):
        for worker in self.workers:
            worker.kill()


@pytest.mark.parametrize(("pp_size", "tp_size"), [(2, 1), (1, 2)])
def test_rings_over_nodes_share_experts(mixture, pp_size, tp_size):  # noqa: F811
    with MillraceServer("--device", "cpu", model=mixture) as server:
        wanted = [ids_answer(server, number) for number in range(3)]
    with RingsOverNodes(mixture, "--pp-size", pp_size, "--tp-size", tp_size) as rings:
        server = rings.server
        for ring in (0, 1):
            assert [ids_answer(server, number, routed_dp_rank=ring) for number in range(3)] == wanted
            wait_until(lambda ring=ring: server.metric("millrace:expert_steps_total", ring=ring, rows="none") > 0, "steps")
        stream = paused_stream(server, ring=0, prompt=[5, 9, 300, 17], max_tokens=240, ignore_eos=True, routed_dp_rank=0)
        rings.workers[1].signal(signal.SIGKILL)
        assert "ring 1: " in stream.error()["message"]
        wait_until(lambda: server.get("/health").status_code == 503, "that no ring serves")
        assert server.post("/continue_generation", {}).status_code == 200
        rings.workers[1].wait()
        rings.start_worker(1)
        server.wait_for_all_rings()
        for ring in (0, 1):
            assert ids_answer(server, 1, routed_dp_rank=ring) == wanted[1]


def test_stored_pages_of_shared_experts_serve_other_layouts(mixture, tmp_path):  # noqa: F811
    store = ("--enable-hierarchical-cache", "--hicache-storage-backend", "file", "--hicache-storage-path", tmp_path / "pages",
             "--hicache-storage-prefetch-policy", "wait_complete")
    flags = ("--pp-size", 2, "--page-size", 16, *store)

    def answer(server, **fields):
        body = {"prompt": [(7 * i) % 500 for i in range(100)], "max_tokens": 8, "temperature": 0, **fields}
        choice = server.post("/v1/completions", body).json()
        return choice["choices"][0]["text"], choice["usage"]["prompt_tokens_details"]["cached_tokens"]

    with DividedServer("--device", "cpu", *flags, "--enable-ep", model=mixture) as server:
        wanted, cached = answer(server, routed_dp_rank=1)
        assert cached == 0
        wait_until(lambda: server.metric("millrace:page_store_written_total", ring=1, stage=1) >= 6, "the stored pages")
    with DividedServer("--device", "cpu", *flags, "--enable-ep", model=mixture) as server:
        assert answer(server, routed_dp_rank=0) == (wanted, 96)
    # The names are those of the whole model, so a ring with all experts and rings over nodes find the pages too.
    with MillraceServer("--device", "cpu", *flags, model=mixture) as server:
        assert answer(server) == (wanted, 96)
    with RingsOverNodes(mixture, *flags, worker_flags=store) as rings:
        assert answer(rings.server, routed_dp_rank=1) == (wanted, 96)
    assert len([each for each in (tmp_path / "pages").iterdir() if each.is_dir()]) == 2  # one per stage
