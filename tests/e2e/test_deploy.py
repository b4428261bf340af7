"""The files of deploy/ and the list of flags in docs/operations.md against the binary."""

import json
import re
import shutil
import subprocess

import pytest
from millrace_server import BINARY, ROOT, run_binary
from prompts import PROMPT

DEPLOY = ROOT / "deploy"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")


def known_flags():
    return set(FLAG.findall(run_binary("serve", "--help").stdout)) - {"--help"}


def expressions(node):
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "expr")
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from expressions(child)


def test_the_dashboard_shows_what_is_exported(pp4):
    pp4.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
    samples = set(re.findall(r"^([\w:]+)(?:\{| )", pp4.get("/metrics").text, re.MULTILINE))
    board = json.loads((DEPLOY / "grafana.json").read_text())
    named = {name for text in expressions(board) for name in re.findall(r"(?:vllm|millrace):\w+", text)}
    assert len(named) > 25
    assert named <= samples
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in board["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("name", ["millrace.service", "Containerfile"])
def test_deployed_commands_use_flags_that_exist(name):
    commands = [line for line in (DEPLOY / name).read_text().splitlines() if line.startswith(("ExecStart", "ENTRYPOINT"))]
    used = set(FLAG.findall(" ".join(commands)))
    assert "--model-path" in used
    assert used <= known_flags()


def test_systemd_takes_the_unit(tmp_path):
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "millrace.service"
    unit.write_text((DEPLOY / "millrace.service").read_text().replace("/usr/local/bin/millrace", str(BINARY.resolve())))
    result = subprocess.run([verifier, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert str(unit) not in result.stderr, result.stderr


def test_the_list_of_flags_is_whole_and_true():
    text = (ROOT / "docs" / "operations.md").read_text()
    listed = text[text.index("## Flags"):]
    listed = set(FLAG.findall(listed[:listed.index("\n## ", 1)]))
    assert listed - {"--help"} == known_flags()
