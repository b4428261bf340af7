"""Some seconds of bench/soak.py, which runs for hours by hand, and whether it would say so if the server grew."""

import subprocess
import sys

import pytest
from millrace_server import BUILD, MODEL, PATIENCE_S, ROOT


def soak(*flags):
    command = [sys.executable, ROOT / "bench" / "soak.py", "--build", BUILD, "--model", MODEL, "--clients", 8,
               "--report-every-s", 1, *flags]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=4 * PATIENCE_S)


@pytest.mark.parametrize("flags", [["--pp-size", 2, "--tiers"], ["--pp-size", 4]], ids=["tiers", "four stages"])
def test_nothing_is_left_of_a_mixed_load(flags):
    result = soak("--warm-up-s", 4, "--duration-s", 4, "--max-growth-mib", 200, *flags)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "at rest: " in result.stdout


def test_growth_is_told():
    result = soak("--warm-up-s", 1, "--duration-s", 1, "--max-growth-mib", -4096)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "amiss: memory grew by " in result.stdout
