"""Tests rings over several processes: equal tokens, and parts that die, fall silent or come late."""

import json
import os
import re
import signal
import socket
import threading
import time

import pytest
from conftest import client_of
from millrace_ring import Node, Ring
from millrace_server import MODEL, PATIENCE_S, run_binary, wait_until
from ring_client import GREEDY, LONG, completion, long_stream, same_answers
from stolen_time import StolenTime
from streams import paused_stream, paused_streams, resume

#: Rounds of kill and restart. MILLRACE_KILL_ROUNDS=200 is the long run.
ROUNDS = int(os.environ.get("MILLRACE_KILL_ROUNDS", "8"))


@pytest.fixture(scope="module")
def ring():
    timeout = ("--ring-timeout", 3)  # those who fall silent here are to be given up
    with Ring(3, 4, *timeout, node_flags=timeout) as ring:
        yield ring


def test_three_processes_answer_as_one(ring, pp1):
    same_answers(ring, pp1)


def test_metrics_show_both_ends_of_every_tcp_link(ring):
    ring.wait_until_whole()
    completion(ring.server, GREEDY)

    def value(name, link, end):
        return ring.server.metric(f"millrace:tcp_{name}", end=end, **dict(zip(("from", "to"), link)))

    # Three nodes host stage 0, stage 1, and stages 2 and 3. Links within a node need no TCP.
    for link in ((0, 1), (1, 2), (3, "head")):
        wait_until(lambda: value("messages_total", link, "receiver") > 60, f"a report of link {link}")
        wait_until(lambda: value("messages_total", link, "sender") > 60, f"a report of link {link}")
        wait_until(lambda: value("round_trip_seconds", link, "sender") > 0, "a heartbeat")
        assert value("sent_bytes_total", link, "sender") > 60 * 32  # at least a header per message
        assert value("received_bytes_total", link, "receiver") > 60 * 32
        assert value("messages_dropped_total", link, "receiver") == 0
    assert ring.server.metric("millrace:tcp_sent_bytes_total", **{"from": 2}) == 0
    assert ring.server.metric("millrace:tcp_send_queue_high_water", **{"from": 0}) >= 1


@pytest.mark.parametrize("rank", [1, 2])
def test_a_killed_node_ends_requests_with_a_reason_and_returns(ring, pp1, rank):
    ring.wait_until_whole()
    streams = [long_stream(ring) for _ in range(4)]
    for stream in streams:
        stream.wait_for_text()
    ring.nodes[rank].kill()
    ring.wait_until_broken()
    for stream in streams:
        finished, message = stream.end()
        assert finished or "the ring is broken" in message
    refused = ring.server.post("/v1/completions", GREEDY)
    assert refused.status_code == 503
    assert "the ring is broken" in refused.json()["error"]["message"]
    ring.start_node(rank)
    ring.wait_until_whole()
    same_answers(ring, pp1)


def test_clients_try_again_until_the_ring_is_whole(ring):
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    ask = {"model": MODEL.name, "messages": [{"role": "user", "content": "Call me Ishmael."}], "max_tokens": 8}
    chat = client_of(ring.server, max_retries=30).chat.completions
    messages = anthropic.Anthropic(base_url=ring.server.url, api_key="none", timeout=PATIENCE_S, max_retries=30).messages
    calls = {"/v1/chat/completions": chat.create, "/v1/messages": messages.create}

    def refused(route):
        return ring.server.metric("millrace:http_requests_total", route=route, status=503)

    ring.wait_until_whole()
    ring.nodes[1].kill()
    ring.wait_until_broken()
    refusal = ring.server.post("/v1/messages", ask)
    assert refusal.status_code == 503 and int(refusal.headers["retry-after"]) > 0
    assert refusal.json()["error"]["type"] == "overloaded_error"
    answers = {}
    threads = [threading.Thread(target=lambda route=route: answers.update({route: calls[route](**ask)})) for route in calls]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(refused(route) >= 2 for route in calls), "refused tries")
    ring.start_node(1)
    for thread in threads:
        thread.join()
    assert answers["/v1/chat/completions"].choices[0].message.content
    assert answers["/v1/messages"].content[0].text


@pytest.mark.parametrize("rank", [1, 2])
def test_a_silent_node_is_noticed_and_rejoins(ring, pp1, rank):
    ring.wait_until_whole()
    stream = long_stream(ring)
    stream.wait_for_text()
    ring.stop_node(rank)
    try:
        ring.wait_until_broken()
        finished, message = stream.end()
        assert finished or "silent" in message
    finally:
        ring.continue_node(rank)
    ring.wait_until_whole()
    same_answers(ring, pp1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_health_names_a_dead_or_silent_node_within_two_seconds(ring, how):
    """Asserts a time, since the server promises it, less the time in which other programs had the processors."""
    ring.wait_until_whole()
    node = ring.nodes[2]
    with StolenTime() as stolen:
        begin = time.monotonic()
        node.signal(how)
        ring.wait_until_broken()
        took_s = time.monotonic() - begin
    if how == signal.SIGKILL:
        node.kill()
        ring.start_node(2)
    else:
        ring.continue_node(2)
    ring.wait_until_whole()
    assert took_s - stolen.seconds < 2, f"{took_s:.2f} s, {stolen.seconds:.2f} of them stolen"


def test_a_ring_that_gets_sigterm_finishes_its_requests():
    """As Kubernetes, Slurm and a terminal end a ring."""
    with Ring(3, 4, "--drain-timeout", PATIENCE_S, node_flags=("--drain-timeout", PATIENCE_S)) as ring:
        ring.wait_until_whole()
        streams = paused_streams(ring.server, [LONG] * 2)
        resume(ring.server)
        for node in ring.nodes.values():
            node.signal(signal.SIGTERM)
        ring.server.terminate()
        for stream in streams:
            finished, message = stream.end()
            assert finished, message
        assert ring.server.wait() == 0, ring.server.log()
        for node in ring.nodes.values():
            assert node.wait() == 0, node.log()
            assert "serving until the head ends it" in node.log()


def test_a_paused_ring_that_gets_sigterm_finishes_its_requests():
    """The node gets its signal first, and the head's ends the pause."""
    with Ring(2, 2, "--drain-timeout", PATIENCE_S, node_flags=("--drain-timeout", PATIENCE_S)) as ring:
        ring.wait_until_whole()
        stream = paused_stream(ring.server, **LONG)
        for _ in range(2):  # the node's first report may be of plans before the pause, the next one is of heartbeats
            seen = plans_of_node_1(ring)
            wait_until(lambda seen=seen: plans_of_node_1(ring) > seen, "a heartbeat")
        node = ring.nodes[1]
        node.signal(signal.SIGTERM)
        wait_until(lambda: "serving until the head ends it" in node.log() or node.process.poll() is not None, "the drain")
        assert node.process.poll() is None, node.log()
        ring.server.terminate()
        finished, message = stream.end()
        assert finished, message
        assert ring.server.wait() == 0, ring.server.log()
        assert node.wait() == 0, node.log()


def plans_of_node_1(ring):
    return ring.server.metric("millrace:tcp_messages_total", end="receiver", **{"from": 0, "to": 1})


def test_idle_nodes_leave_soon_and_a_second_signal_ends_others(ring):
    """A time is asserted here, since it is what the server promises: of the time in which its processors were to be had."""
    ring.wait_until_whole()
    wait_until(lambda: ring.server.get("/load").json()["running"] == 0, "idleness")
    node = ring.nodes[1]
    with StolenTime() as stolen:
        begin = time.monotonic()
        node.signal(signal.SIGTERM)
        assert node.wait() == 0, node.log()
        took_s = time.monotonic() - begin
    ring.start_node(1)
    ring.wait_until_whole()
    assert took_s - stolen.seconds < 2, f"{took_s:.2f} s, {stolen.seconds:.2f} of them stolen"

    stream = paused_stream(ring.server, **LONG, n=32)  # takes a while
    resume(ring.server)
    node = ring.nodes[1]
    node.signal(signal.SIGTERM)
    wait_until(lambda: "serving until the head ends it" in node.log(), "the drain")
    node.signal(signal.SIGTERM)
    assert node.wait() == -signal.SIGTERM
    stream.end()
    ring.start_node(1)
    ring.wait_until_whole()


@pytest.mark.parametrize("who", [0, 1])
def test_a_process_back_within_the_ring_timeout_breaks_nothing(who, pp1):
    with Ring(2, 2, "--ring-timeout", PATIENCE_S, node_flags=("--ring-timeout", PATIENCE_S)) as ring:
        ring.wait_until_whole()
        stream = long_stream(ring)
        stream.wait_for_text()
        process = ring.nodes[who].process if who else ring.server.process
        process.send_signal(signal.SIGSTOP)
        try:
            if who:
                wait_until(lambda: ring.health() == 503, "the head noticing")
                assert "has been silent for 1.5 s" in ring.server.get("/health").text
                assert ring.server.post("/v1/completions", GREEDY).status_code == 503
            else:
                time.sleep(2)  # longer than a peer may be quiet
        finally:
            process.send_signal(signal.SIGCONT)
        ring.wait_until_whole()
        finished, message = stream.end()
        assert finished, message
        same_answers(ring, pp1)
        assert "the ring is broken" not in ring.server.log()


def test_a_head_that_was_stopped_ends_requests_and_goes_on(ring, pp1):
    ring.wait_until_whole()
    stream = long_stream(ring)
    stream.wait_for_text()

    def losses():
        return [node.log().count(" is gone: silent for ") for node in ring.nodes.values()]

    before = losses()
    ring.server.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: all(now > then for now, then in zip(losses(), before)), "the nodes noticing")
    finally:
        ring.server.process.send_signal(signal.SIGCONT)
    finished, message = stream.end()
    assert finished or "the ring is broken" in message
    ring.wait_until_whole()
    same_answers(ring, pp1)


def test_rounds_of_deaths_leak_nothing(ring, pp1):
    ring.wait_until_whole()
    completion(ring.server, GREEDY)
    wait_until(lambda: ring.server.get("/load").json()["running"] == 0, "idleness")
    before = ring.open_files()
    for number in range(ROUNDS):
        rank = 1 + number % 2
        held = ring.open_files(rank)
        streams = [long_stream(ring, max_tokens=100) for _ in range(3)]
        if number % 4 < 2:
            ring.nodes[rank].kill()
            ring.start_node(rank)
        else:
            ring.stop_node(rank)
            ring.wait_until_broken()
            ring.continue_node(rank)
        for stream in streams:
            stream.end()
        ring.wait_until_whole()
        wait_until(lambda: ring.open_files(rank) <= held, "the node having no more files open than before")
        completion(ring.server, {**GREEDY, "max_tokens": 5})
    load = ring.server.get("/load").json()
    assert load["running"] == 0 and load["waiting"] == 0
    engine = ring.server.get("/server_info").json()["engine"]
    assert engine["free_pages"] == engine["total_pages"], engine
    # The client of the test opens connections too; a leak would show once per round and node.
    assert ring.open_files() <= before + 6
    same_answers(ring, pp1)


class RingWithLittleMemory(Ring):
    """A ring whose node 1 finds as much available memory as a file says that stands for /proc/meminfo."""

    def __init__(self, meminfo, *args):
        super().__init__(*args)
        self.meminfo = meminfo

    def set_available(self, kib):
        self.meminfo.write_text(f"MemTotal: 16777216 kB\nMemAvailable: {kib} kB\n")

    def prefix(self, rank):
        if rank == 0:
            return []
        return ["unshare", "-m", "sh", "-c", f"mount --bind {self.meminfo} /proc/meminfo && exec \"$@\"", "node"]


@pytest.mark.skipif(os.getuid() != 0, reason="a node gets its own /proc/meminfo by a mount, which takes root")
def test_the_pools_follow_the_memory_of_a_node_that_returns(pp1, tmp_path):
    def tokens(ring):
        return ring.server.get("/server_info").json()["model"]["kv_token_capacity"]

    ring = RingWithLittleMemory(tmp_path / "meminfo", 2, 2, "--page-size", 16, "--context-length", 256)
    ring.set_available(4 * 1024)
    with ring:
        first = tokens(ring)
        same_answers(ring, pp1)
        for share in (0.5, 0.25, 1.0):
            ring.nodes[1].kill()
            ring.wait_until_broken()
            ring.set_available(int(share * 4 * 1024))
            ring.start_node(1)
            ring.wait_until_whole()
            assert abs(tokens(ring) - share * first) <= 2 * 16, (tokens(ring), share, first)
            same_answers(ring, pp1)
        log = ring.server.log()
        assert len(re.findall(r"KV cache: \d+ pages of 16 tokens from now on, \d+ before", log)) == 3, log
        engine = ring.server.get("/server_info").json()["engine"]
        assert engine["free_pages"] == engine["total_pages"] == tokens(ring) // 16, engine


def test_the_measured_partition_reaches_every_node(pp1):
    with Ring(2, 3, "--pp-layer-partition", "auto") as ring:
        same_answers(ring, pp1)
        chosen = re.search(r"--pp-layer-partition auto: (\d+),(\d+),(\d+)\.", ring.server.log())
        assert chosen, ring.server.log()
        sizes = [int(size) for size in chosen.groups()]
        assert sum(sizes) == json.loads((MODEL / "config.json").read_text())["num_hidden_layers"]
        ring.nodes[1].kill()
        ring.wait_until_broken()
        ring.start_node(1)
        ring.wait_until_whole()
        # The new node gets the same layers as the old one.
        assert f"stage 1: layers {sizes[0]} to {sizes[0] + sizes[1] - 1}" in ring.nodes[1].log(), ring.nodes[1].log()
        assert f"stage 2: layers {sizes[0] + sizes[1]} to {sum(sizes) - 1}" in ring.nodes[1].log()
        same_answers(ring, pp1)


def test_nodes_outlive_the_head(pp1):
    with Ring(2, 2) as ring:
        completion(ring.server, GREEDY)
        for other_flags in ([], ["--max-total-tokens", 8192], ["--watchdog-timeout", 77],
                            ["--pp-async-batch-depth", 1, "--mem-fraction-static", 0.1, "--enable-hierarchical-cache"]):
            ring.server.end()
            ring.start_head(*other_flags)
            same_answers(ring, pp1)
            assert ring.nodes[1].log().count("MB of weights") == 1, ring.nodes[1].log()
        ring.server.end()
        ring.start_head("--page-size", 32)
        same_answers(ring, pp1)
        assert ring.nodes[1].log().count("MB of weights") == 2, ring.nodes[1].log()


def test_a_ring_by_ipv6(pp1):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as failure:
        pytest.skip(f"no IPv6 here: {failure}")
    with Ring(3, 3, host="[::1]") as ring:
        same_answers(ring, pp1)


def test_start_order_does_not_matter_and_the_missing_are_named(pp1):
    ring = Ring(2, 2)
    try:
        starting = threading.Thread(target=ring.start_head)
        starting.start()
        wait_until(lambda: ring.server and ring.server.url and "waiting" in ring.server.get("/health").text, "the port")
        wanted = "forming: waiting for node 1 of 2 (stages 1 to 1)"
        refused = [ring.server.get("/health"), ring.server.post("/v1/completions", GREEDY), ring.server.get("/live")]
        for answer in refused:
            assert answer.status_code == 503
            assert wanted in answer.json()["error"]["message"], answer.text
        assert ring.server.get("/v1/models").status_code == 200
        assert ring.server.get("/metrics").status_code == 200
        wait_until(lambda: "waiting for node 1 of 2 (stages 1 to 1)" in ring.server.log(), "the reminder")
        ring.start_node(1)
        starting.join()
        same_answers(ring, pp1)
    finally:
        ring.__exit__()


def test_a_head_that_waits_for_nodes_ends_on_sigterm():
    ring = Ring(2, 2)
    starting = threading.Thread(target=lambda: pytest.raises(AssertionError, ring.start_head))
    try:
        starting.start()
        wait_until(lambda: ring.server and ring.server.url and "waiting" in ring.server.get("/health").text, "the port")
        ring.server.terminate()
        assert ring.server.wait() == 0
    finally:
        ring.__exit__()
        starting.join()


def test_a_node_that_does_not_fit_is_refused_by_name(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for file in MODEL.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = json.loads((other / "config.json").read_text())
    config["rms_norm_eps"] = 1e-3
    (other / "config.json").write_text(json.dumps(config))
    with Ring(2, 2) as ring:
        ring.nodes[1].kill()
        ring.start_node(1, model=other)
        wait_until(lambda: "its model has fingerprint" in ring.server.log(), "the refusal")
        wait_until(lambda: "its model has fingerprint" in ring.nodes[1].log(), "the node hearing it")
        assert ring.server.metric("millrace:control_refused_total") >= 1
        ring.nodes[1].kill()
        ring.start_node(1)
        ring.wait_until_whole()


def test_a_second_head_or_node_of_one_rank_is_refused(pp1):
    with Ring(2, 2) as ring:
        second = run_binary("serve", "--model-path", MODEL, "--port", 0, *ring.head_flags, "--pp-layer-partition", "auto")
        assert second.returncode == 1
        wanted = f"millrace: --dist-init-addr {ring.address}: another head, or another program, listens there already"
        assert second.stderr.splitlines()[-1] == wanted
        assert "--pp-layer-partition auto:" not in second.stderr, "the parts of the model were timed before it was told"
        twin = Node(ring, 1, MODEL)
        try:
            wanted = "node rank 1 is connected already, from 127.0.0.1:"
            wait_until(lambda: f"the head at {ring.address} ends the connection: {wanted}" in twin.log(), "the refusal")
            wait_until(lambda: wanted in ring.server.log(), "the head saying so")
            assert ring.health() == 200
            ring.nodes[1].kill()
            wait_until(lambda: "joined epoch" in twin.log(), "the second taking the place of the first")
            ring.wait_until_whole()
            same_answers(ring, pp1)
        finally:
            twin.kill()


def compute_of_nodes(ring):
    return [node["compute"] for node in ring.server.get("/server_info").json()["nodes"]]


def test_nodes_that_compute_differently_are_named_once(pp1):
    with Ring(2, 2, node_flags=["--cpu-isa", "portable"]) as ring:
        best, other = compute_of_nodes(ring)
        if best == other:
            pytest.skip(f"this processor has {best} only")
        assert other == "bf16 cpu portable"
        warning = f"node 1 of 2 (stages 1 to 1) computes in {other}, the head's node in {best}"
        assert ring.server.log().count(warning) == 1, ring.server.log()
        ring.nodes[1].kill()
        ring.wait_until_broken()
        wait_until(lambda: compute_of_nodes(ring) == [best, ""], "the head forgetting the node")
        ring.start_node(1)
        ring.wait_until_whole()
        assert ring.server.log().count(warning) == 1


def test_the_head_gives_all_nodes_one_instruction_set():
    with Ring(2, 2, "--cpu-isa", "portable", node_flags=["--cpu-isa", "auto"]) as ring:
        assert compute_of_nodes(ring) == ["bf16 cpu portable"] * 2
        assert "computes in" not in ring.server.log()
        assert len(completion(ring.server, GREEDY)["text"]) > 0


def test_a_node_leaves_on_sigterm():
    with Ring(2, 2) as ring:
        ring.nodes[1].signal(signal.SIGTERM)
        assert ring.nodes[1].wait() == 0
        ring.wait_until_broken()


def test_wrong_ranks_are_one_clear_line():
    for flags, wanted in [
        (["--nnodes", "2"], "--nnodes above 1 needs --dist-init-addr HOST:PORT"),
        (["--nnodes", "2", "--node-rank", "2", "--dist-init-addr", "a:1"], "--node-rank 2: wanted below --nnodes 2"),
        (["--nnodes", "2", "--dist-init-addr", "nonsense"], "--dist-init-addr: 'nonsense' is not HOST:PORT"),
    ]:
        ended = run_binary("serve", "--model-path", MODEL, *flags)
        assert ended.returncode == 2
        assert ended.stderr.strip() == f"millrace: {wanted}"
