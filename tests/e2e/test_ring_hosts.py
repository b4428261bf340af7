"""Tests a ring whose nodes are hosts of their own: links that are cut, healed or slow."""

import concurrent.futures
import os
import subprocess

import pytest
from millrace_ring import Ring
from ring_client import GREEDY, completion, long_stream, same_answers


class NamespaceRing(Ring):
    """A ring whose nodes have a network namespace each on one bridge. The HTTP port is reachable from outside."""

    def __init__(self, node_count, pp_size):
        super().__init__(node_count, pp_size, host="10.77.0.1", http_host="10.78.0.2")
        self.outside = f"mr{os.getpid()}"

    @staticmethod
    def name(rank):
        return f"millrace-test-{os.getpid()}-{rank}"

    def prefix(self, rank):
        return ["ip", "netns", "exec", self.name(rank)]

    def make(self):
        def run(line):
            subprocess.run(line.split(), check=True, capture_output=True)

        for rank in range(self.node_count):
            run(f"ip netns add {self.name(rank)}")
            run(f"ip -n {self.name(rank)} link set lo up")
            # Senders that fill any queue.
            run(f"ip netns exec {self.name(rank)} sysctl -q -w net.ipv4.tcp_congestion_control=reno")
        head = self.name(0)
        run(f"ip link add {self.outside} type veth peer name outside netns {head}")
        run(f"ip addr add 10.78.0.1/24 dev {self.outside}")
        run(f"ip link set {self.outside} up")
        run(f"ip -n {head} addr add 10.78.0.2/24 dev outside")
        run(f"ip -n {head} link set outside up")
        run(f"ip -n {head} link add bridge type bridge")
        run(f"ip -n {head} addr add 10.77.0.1/24 dev bridge")
        run(f"ip -n {head} link set bridge up")
        for rank in range(1, self.node_count):
            run(f"ip -n {head} link add ring{rank} type veth peer name ring0 netns {self.name(rank)}")
            run(f"ip -n {head} link set ring{rank} master bridge up")
            run(f"ip -n {self.name(rank)} addr add 10.77.0.{rank + 1}/24 dev ring0")
            run(f"ip -n {self.name(rank)} link set ring0 up")

    def remove(self):
        subprocess.run(["ip", "link", "del", self.outside], capture_output=True)
        for rank in range(self.node_count):
            subprocess.run(["ip", "netns", "del", self.name(rank)], capture_output=True)

    def slow_down(self, rate):
        """Puts a queue that holds seconds of traffic before every link between hosts, in both directions."""
        for rank in range(1, self.node_count):
            for namespace, device in ((self.name(0), f"ring{rank}"), (self.name(rank), "ring0")):
                line = f"tc -n {namespace} qdisc add dev {device} root tbf rate {rate} burst 16kb latency 4000ms"
                subprocess.run(line.split(), check=True, capture_output=True)

    def set_link(self, rank, state):
        subprocess.run(["ip", "-n", self.name(0), "link", "set", f"ring{rank}", state], check=True)


@pytest.fixture
def hosts():
    ring = NamespaceRing(3, 3)
    try:
        ring.make()
    except (OSError, subprocess.CalledProcessError) as failure:
        ring.remove()
        pytest.skip(f"network namespaces cannot be made here: {failure}")
    try:
        with ring:
            yield ring
    finally:
        ring.remove()


def test_a_link_between_hosts_is_cut_and_healed(hosts, pp1):
    same_answers(hosts, pp1)
    stream = long_stream(hosts)
    stream.wait_for_text()
    hosts.set_link(2, "down")
    hosts.wait_until_broken()
    finished, message = stream.end()
    assert finished or "silent" in message
    hosts.set_link(2, "up")
    hosts.wait_until_whole()
    same_answers(hosts, pp1)


def test_a_link_that_is_merely_slow_breaks_nothing(hosts, pp1):
    hosts.slow_down("2mbit")
    epochs = hosts.server.metric("millrace:ring_epochs_total")
    same_answers(hosts, pp1)
    # Transfers of these activations take longer than the silence limit.
    prompts = [{**GREEDY, "prompt": " ".join([word] * 400), "max_tokens": 10} for word in ("sea", "hand", "day", "said")]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda body: completion(hosts.server, body)["text"], prompts))
    assert answers == [completion(pp1, body)["text"] for body in prompts]
    assert hosts.server.metric("millrace:ring_epochs_total") == epochs
    assert "silent" not in hosts.server.log()
