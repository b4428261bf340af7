"""Starts a ring over several processes: node 0 with the head and HTTP, and the other nodes."""

import os
import random
import re
import signal
import socket

from millrace_server import BINARY, MODEL, MillraceServer, wait_until
from node_process import NodeProcess


def free_port():
    """Returns a free port below the ephemeral range, so that no outgoing connection takes it. Each of several pytest
    processes draws from ports of its own."""
    worker = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "0")))
    while True:
        port = random.randrange(16384 + worker, 32768, 8)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Node(NodeProcess):
    """A node with rank 1 or more."""

    def __init__(self, ring, rank, model):
        super().__init__([*ring.prefix(rank), BINARY, "serve", "--model-path", model, "--nnodes", ring.node_count,
                          "--node-rank", rank, "--dist-init-addr", ring.address_for(rank), "--threads", 1,
                          *ring.node_flags])


class Ring:
    """A ring, as a context manager. `server` is node 0."""

    def __init__(self, node_count, pp_size, *flags, node_flags=(), host="127.0.0.1", http_host="127.0.0.1",
                 model=MODEL):
        self.model = model
        self.node_count = node_count
        self.node_flags = node_flags  # for the nodes other than the head's
        self.http_host = http_host
        self.address = f"{host}:{free_port()}"
        self.head_flags = ["--pp-size", pp_size, "--nnodes", node_count, "--node-rank", 0, "--dist-init-addr",
                           self.address_for(0), "--threads", 1, *flags]
        self.nodes = {}
        self.server = None

    def address_for(self, rank):
        """Returns the address of the head that a node is given."""
        return self.address

    def prefix(self, rank):
        """Returns the words that precede a node's command."""
        return []

    def start_node(self, rank, model=None):
        self.nodes[rank] = Node(self, rank, model or self.model)

    def start_head(self, *flags):
        self.server = MillraceServer(*self.head_flags, *flags, model=self.model, host=self.http_host, prefix=self.prefix(0))
        self.server.__enter__()

    def __enter__(self):
        try:
            for rank in range(1, self.node_count):
                self.start_node(rank)
            self.start_head()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for node in self.nodes.values():
            node.kill()
        if self.server:
            self.server.end()

    def health(self):
        return self.server.get("/health").status_code

    def wait_until_broken(self):
        return wait_until(lambda: self.health() == 503, "the head noticing")

    def wait_until_whole(self):
        return wait_until(lambda: self.health() == 200, "the ring forming again")

    def open_files(self, rank=0):
        process = self.nodes[rank].process if rank else self.server.process
        return len(os.listdir(f"/proc/{process.pid}/fd"))

    def stop_node(self, rank):
        self.nodes[rank].signal(signal.SIGSTOP)

    def continue_node(self, rank):
        self.nodes[rank].signal(signal.SIGCONT)
