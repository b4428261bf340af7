#!/usr/bin/env python3
"""Measures the anonymous memory of `millrace serve` while it loads a model, against what stays once it is ready.

Usage: bench/load_memory.py [--millrace FILE] [--runs N] MODEL [FLAG ...]

Prints one line per run: the largest anonymous memory while loading, what stays, and their ratio. The KV cache is
small, so that weights decide. Mapped pages of the model's files are not anonymous, and the kernel may drop them.
"""
import argparse
import pathlib
import socket
import subprocess
import threading
import time

POLL_SECONDS = 0.002
START_LIMIT_SECONDS = 600
SETTLE_SECONDS = 0.5


def anonymous_mib(pid: int) -> float:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(millrace: str, model: str, flags: list[str]) -> tuple[float, float, str]:
    """Returns the peak and what stays, in MiB, and the log's line about the weights."""
    command = [millrace, "serve", "--model-path", model, "--host", "127.0.0.1", "--port", str(free_port()),
               "--max-total-tokens", "256", "--context-length", "256", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    lines: list[str] = []
    peak = 0.0
    try:
        reader = threading.Thread(target=lambda: lines.extend(server.stdout), daemon=True)
        reader.start()
        end = time.monotonic() + START_LIMIT_SECONDS
        while not any(line.rstrip().endswith(" ready") for line in list(lines)):
            if server.poll() is not None or time.monotonic() > end:
                raise SystemExit("".join(lines) or "the server ended")
            peak = max(peak, anonymous_mib(server.pid))
            time.sleep(POLL_SECONDS)
        time.sleep(SETTLE_SECONDS)
        stays = anonymous_mib(server.pid)
    finally:
        if server.poll() is None:
            server.terminate()
        server.wait()
    weights = next((line for line in lines if " of weights on " in line), "")
    return max(peak, stays), stays, weights.strip().split(" info  ")[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="build/millrace")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("model")
    parser.add_argument("flags", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    for _ in range(arguments.runs):
        peak, stays, weights = measure(arguments.millrace, arguments.model, arguments.flags)
        print(f"peak {peak:.0f} MiB, stays {stays:.0f} MiB, ratio {peak / stays:.2f}: {weights}")


if __name__ == "__main__":
    main()
