"""Runs bench/soak.py for seconds, and tests that it reports a server that grows."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from millrace_server import BUILD, MODEL, PATIENCE_S, ROOT, wait_until


def command_of(*flags):
    command = [sys.executable, ROOT / "bench" / "soak.py", "--build", BUILD, "--model", MODEL, "--clients", 8,
               "--report-every-s", 1, *flags]
    return [str(part) for part in command]


def soak(*flags):
    return subprocess.run(command_of(*flags), capture_output=True, text=True, timeout=4 * PATIENCE_S)


@pytest.mark.parametrize("flags", [["--pp-size", 2, "--tiers"], ["--pp-size", 4]], ids=["tiers", "four stages"])
def test_nothing_is_left_of_a_mixed_load(flags):
    result = soak("--warm-up-s", 3, "--duration-s", 3, "--max-growth-mib", 200, *flags)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "at rest: " in result.stdout


def test_growth_is_reported():
    result = soak("--warm-up-s", 1, "--duration-s", 1, "--max-growth-mib", -4096)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "amiss: memory grew by " in result.stdout


def children_of(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def test_a_dead_server_is_reported_with_its_log():
    process = subprocess.Popen(command_of("--warm-up-s", 0, "--duration-s", 600), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("warm: ")
        os.kill(int(wait_until(lambda: children_of(process), "the server")[0]), signal.SIGKILL)
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert errors == ""
    assert "amiss: the server ended with -9" in output
    assert "amiss: the soak ended early: " in output
    assert re.search(r" info +ready$", output, re.MULTILINE), output
