"""Runs Claude Code against a scripted model, in a network namespace without a way out. Its binary is the one in the wheel of
claude-agent-sdk, or MILLRACE_CLAUDE_CODE names it. Without either the tests skip."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
from agent_runs import AGENT_SERVER, call, can_isolate

RUN = """set -e
ip link set lo up
sleep 300 | "$AGENT_SERVER" > server.log 2>&1 &
for _ in $(seq 300); do grep -q listening server.log && break; sleep 0.1; done
cd work
"$CLAUDE" -p --output-format json "Which files are here?" --allowedTools Bash < /dev/null
"""
THINK = "<think>\nFirst the folder.\n</think>\n\n"


def claude_binary():
    """Returns the path of Claude Code's program, or nothing."""
    if "MILLRACE_CLAUDE_CODE" in os.environ:
        return Path(os.environ["MILLRACE_CLAUDE_CODE"])
    package = importlib.util.find_spec("claude_agent_sdk")
    return package and Path(package.origin).parent / "_bundled" / "claude"


@pytest.fixture
def run_claude(tmp_path):
    claude = claude_binary()
    if claude is None or not claude.exists():
        pytest.skip("claude-agent-sdk is not installed")
    if not can_isolate():
        pytest.skip("this machine makes no network namespaces")
    if not AGENT_SERVER.exists():
        pytest.skip(f"{AGENT_SERVER} is not built")

    def run(script):
        for folder in ("home", "work", "prompts"):
            (tmp_path / folder).mkdir()
        (tmp_path / "work" / "whale.txt").write_text("Thar she blows.\n")
        (tmp_path / "script.json").write_text(json.dumps([{"after": after, "write": write} for after, write in script]))
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(tmp_path / "home"), "CLAUDE": str(claude),
                       "ANTHROPIC_BASE_URL": "http://127.0.0.1:8080", "ANTHROPIC_AUTH_TOKEN": "made-up",
                       "ANTHROPIC_MODEL": "scripted", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "scripted",
                       "AGENT_SERVER": str(AGENT_SERVER), "MILLRACE_AGENT_PORT": "8080",
                       "MILLRACE_AGENT_SCRIPT": str(tmp_path / "script.json"),
                       "MILLRACE_AGENT_PROMPTS": str(tmp_path / "prompts")}
        done = subprocess.run(["unshare", "-rn", "--kill-child", "--pid", "--fork", "sh", "-c", RUN], cwd=tmp_path,
                              env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "server.log").read_text()
        prompts = [path.read_text() for path in sorted((tmp_path / "prompts").iterdir(), key=lambda path: int(path.stem))]
        return json.loads(done.stdout), prompts

    return run


def test_claude_code_runs_a_command_and_answers(run_claude):
    first = THINK + "I look.\n" + call("Bash", command="cat whale.txt", description="Read the file")
    result, prompts = run_claude([("", first), ("<tool>", THINK + "It is a whale.")])
    assert result["subtype"] == "success" and not result["is_error"] and result["num_turns"] == 2
    assert result["result"] == "It is a whale." and result["permission_denials"] == []
    assert len(prompts) == 2 and "<tool>Thar she blows." in prompts[1][len(prompts[0]):]
    # What the model wrote is part of the next prompt, with its reasoning.
    assert prompts[1].startswith(prompts[0] + THINK + "I look.<tool_call>")
    assert result["usage"]["cache_read_input_tokens"] >= 0.95 * len(prompts[0].encode())
    assert "billing-header" not in prompts[0] + prompts[1]


def test_claude_code_gives_the_error_of_a_tool_back(run_claude):
    result, prompts = run_claude([("", call("Bash", command="cat no-such-file", description="Read the file")),
                                  ("<tool>", "There is none.")])
    assert result["result"] == "There is none." and len(prompts) == 2
    assert "<tool>Error" in prompts[1][len(prompts[0]):] and "no-such-file" in prompts[1][len(prompts[0]):]
