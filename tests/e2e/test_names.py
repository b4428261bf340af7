"""Tests how nodes find the head: names whose lookup hangs, hosts with several addresses, and stops during a lookup."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from millrace_ring import Ring
from millrace_server import BUILD, PATIENCE_S, MillraceServer, wait_until
from prompts import PROMPT

LIBRARY = BUILD / "tests/e2e/endless_lookup.so"
NAME = "endless.example"
PREFIX = ["env", f"LD_PRELOAD={LIBRARY}"]
BEGINS = "a lookup without end begins"


class OpenRing(Ring):
    """The head listens at every address, and each node connects to another one."""

    def __init__(self):
        super().__init__(3, 3)

    def address_for(self, rank):
        port = self.address.rsplit(":", 1)[1]
        return f"{['[::]', '127.0.0.1', '[::1]'][rank]}:{port}"


class NamedRing(Ring):
    """A ring whose head address is the name."""

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
        assert node.wait() == 0
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


def test_a_server_starts_and_stops_while_its_store_is_looked_up():
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


class LonelyNode(Ring):
    """Node 1 in a network namespace of its own, set up by `commands`."""

    NAMESPACE = f"millrace-names-{os.getpid()}"
    FILES = Path("/etc/netns") / NAMESPACE

    def __init__(self, host="127.0.0.1"):
        super().__init__(2, 2, host=host)
        self.commands = []
        self.head = None  # a command that listens before the node starts
        self.listener = None

    def prefix(self, rank):
        return ["ip", "netns", "exec", self.NAMESPACE]

    def __enter__(self):
        try:
            for command in (["ip", "netns", "add", self.NAMESPACE],
                            ["ip", "-n", self.NAMESPACE, "link", "set", "lo", "up"], *self.commands):
                subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as failure:
            self.__exit__()
            pytest.skip(f"network namespaces cannot be made here: {failure}")
        if self.head:
            self.listener = subprocess.Popen(self.head, stdout=subprocess.PIPE, text=True)
            assert self.listener.stdout.readline() == "there\n"
        self.start_node(1)
        return self

    def __exit__(self, *_):
        super().__exit__()
        if self.listener:
            self.listener.kill()
            self.listener.wait()
        subprocess.run(["ip", "netns", "del", self.NAMESPACE], capture_output=True)


#: A listener at two addresses. At one its queue is full, so that later connections get no reply.
ONE_DEAF = """
import socket, sys
port = int(sys.argv[1])
deaf = socket.create_server(("127.0.0.1", port), backlog=0)
queue = [socket.socket() for _ in range(4)]
for client in queue:
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", port))
hearing = socket.create_server(("127.0.0.2", port))
print("there", flush=True)
hearing.accept()
print("came", flush=True)
"""


def test_a_node_comes_to_the_address_that_answers():
    ring = LonelyNode("head.example")
    LonelyNode.FILES.mkdir(parents=True)
    try:
        LonelyNode.FILES.joinpath("hosts").write_text("127.0.0.1 head.example\n127.0.0.2 head.example\n")
        port = ring.address.rsplit(":", 1)[1]
        ring.head = [*ring.prefix(0), sys.executable, "-c", ONE_DEAF, port]
        with ring:
            assert select.select([ring.listener.stdout], [], [], PATIENCE_S)[0], ring.nodes[1].log()
            assert ring.listener.stdout.readline() == "came\n"
    finally:
        shutil.rmtree(LonelyNode.FILES)


def test_a_node_does_not_take_itself_for_the_head():
    """A client that gets the head's port as its ephemeral port connects to itself."""
    ring = LonelyNode()
    port = ring.address.rsplit(":", 1)[1]
    ring.commands = [["ip", "netns", "exec", ring.NAMESPACE, "sysctl", "-q", "-w",
                      f"net.ipv4.ip_local_port_range={port} {port}"]]
    with ring:
        wait_until(lambda: "Connection refused" in ring.nodes[1].log(), "the refusal")
