"""Where the head is: names for which the system's resolver never answers, so that no stop may wait for it, and hosts of
several addresses."""

import signal
import socket
import threading

import pytest
from millrace_ring import Ring
from millrace_server import BUILD, PATIENCE_S, MillraceServer, wait_until
from prompts import PROMPT

LIBRARY = BUILD / "tests/e2e/endless_lookup.so"
NAME = "endless.example"
PREFIX = ["env", f"LD_PRELOAD={LIBRARY}"]
BEGINS = "a lookup without end begins"


class OpenRing(Ring):
    """The head listens at every address, and each node comes to another."""

    def __init__(self):
        super().__init__(3, 3)

    def address_for(self, rank):
        port = self.address.rsplit(":", 1)[1]
        return f"{['[::]', '127.0.0.1', '[::1]'][rank]}:{port}"


class NamedRing(Ring):
    """Its head's address is the name."""

    def __init__(self):
        super().__init__(2, 2, host=NAME)

    def prefix(self, rank):
        return PREFIX


def test_a_node_that_looks_up_its_head_can_be_stopped():
    ring = NamedRing()
    try:
        ring.start_node(1)
        node = ring.nodes[1]
        wait_until(lambda: BEGINS in node.log(), "the lookup")
        wait_until(lambda: f"waiting for the head at {ring.address}: the name '{NAME}' has not been looked up yet" in
                   node.log(), "the reminder")
        node.signal(signal.SIGTERM)
        assert node.process.wait(timeout=PATIENCE_S) == 0
        assert node.log().count(BEGINS) == 1
    finally:
        ring.__exit__()


def test_a_head_that_looks_up_its_own_name_can_be_stopped():
    ring = NamedRing()
    starting = threading.Thread(target=lambda: pytest.raises(AssertionError, ring.start_head))
    try:
        starting.start()
        wait_until(lambda: ring.server and BEGINS in ring.server.log(), "the lookup")
        ring.server.terminate()
        assert ring.server.wait() == 0
    finally:
        ring.__exit__()
        starting.join()


def test_a_server_that_looks_up_where_it_listens_can_be_stopped():
    server = MillraceServer(host=NAME, prefix=PREFIX)
    starting = threading.Thread(target=lambda: pytest.raises(AssertionError, server.__enter__))
    starting.start()
    wait_until(lambda: f"--host: the name '{NAME}' has not been looked up yet" in server.log(), "the line of the log")
    server.terminate()
    assert server.wait() == 0
    starting.join()


def test_a_server_whose_page_store_is_looked_up_starts_without_it_and_can_be_stopped():
    flags = ["--enable-hierarchical-cache", "--hicache-storage-backend", "redis", "--hicache-storage-address", f"{NAME}:6379"]
    with MillraceServer(*flags, prefix=PREFIX) as server:
        assert f"the name '{NAME}' has not been looked up yet; every get misses" in server.log()
        server.terminate()
        assert server.wait() == 0


def test_nodes_come_to_one_head_by_both_protocols(pp1):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as failure:
        pytest.skip(f"no IPv6 here: {failure}")
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    with OpenRing() as ring:
        answers = [server.post("/v1/completions", body).json()["choices"][0]["text"] for server in (ring.server, pp1)]
        assert answers[0] == answers[1]
