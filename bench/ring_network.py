"""Two hosts on one machine for ring_bench.py: network namespaces and a slow link between them. Wants root."""

import contextlib
import os
import subprocess
import sys


def run(line):
    subprocess.run(line.split(), check=True, capture_output=True)


def has_netem():
    """Tried out on the loopback of a namespace of its own."""
    name = f"millrace-bench-{os.getpid()}-probe"
    run(f"ip netns add {name}")
    probe = subprocess.run(f"tc -n {name} qdisc add dev lo root netem delay 2ms".split(), capture_output=True)
    run(f"ip netns del {name}")
    return probe.returncode == 0


@contextlib.contextmanager
def cable(kind, names, build):
    """Joins two namespaces by a device 'ring' in each."""
    if kind == "relay":
        # Ahead of what computes, as the kernel's own queues are.
        relay = subprocess.Popen(["nice", "-n", "-10", str(build / "bench" / "slow_link"), *names, "--rate-mbit",
                                  "1000", "--delay-ms", "2"], stdout=subprocess.PIPE, text=True)
        try:
            if relay.stdout.readline() != "ready\n":
                sys.exit("ring_bench: bench/slow_link did not start")
            for name in names:
                # Large packets, as offloads make them: at 1500 bytes the relay would handle 83000 a second.
                run(f"ip -n {name} link set ring mtu 32000")
            yield
        finally:
            relay.terminate()
            relay.wait()
        return
    run(f"ip -n {names[0]} link add ring type veth peer name ring netns {names[1]}")
    for name in names:
        if kind == "netem":
            run(f"tc -n {name} qdisc add dev ring root netem rate 1gbit delay 2ms limit 100000")
        else:
            run(f"tc -n {name} qdisc add dev ring root tbf rate 1gbit burst 256kb latency 100ms")
    yield


NETWORKS = {"netem": "1 Gbit/s, 2 ms", "relay": "1 Gbit/s, 2 ms, relay", "rate": "1 Gbit/s, no delay"}


@contextlib.contextmanager
def two_namespaces(kind, build):
    """Two hosts, node 0 at 10.79.0.1 and node 1 at 10.79.0.2; their prefixes, and what is between them."""
    names = [f"millrace-bench-{os.getpid()}-{rank}" for rank in range(2)]
    if kind == "auto":
        kind = "netem" if has_netem() else "relay"
    try:
        for name in names:
            run(f"ip netns add {name}")
            run(f"ip -n {name} link set lo up")
        with cable(kind, names, build):
            for rank, name in enumerate(names):
                run(f"ip -n {name} addr add 10.79.0.{rank + 1}/24 dev ring")
                run(f"ip -n {name} link set ring up")
            yield [["ip", "netns", "exec", name] for name in names], NETWORKS[kind]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
