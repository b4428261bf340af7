"""Runs Codex against a scripted model, in a network namespace without a way out. Its binary is the one in the wheel of
openai-codex-cli-bin; without that package the tests skip."""

import json
import shutil
import subprocess

import pytest
from agent_runs import AGENT_SERVER, call, can_isolate

codex_cli_bin = pytest.importorskip("codex_cli_bin", reason="openai-codex-cli-bin is not installed")

CODEX = f"{codex_cli_bin.__path__[0]}/bin/codex"
CONFIG = """model = "scripted"
model_provider = "millrace"
model_context_window = 1000000
[model_providers.millrace]
name = "millrace"
base_url = "http://127.0.0.1:8080/v1"
wire_api = "responses"
env_key = "MILLRACE_API_KEY"
request_max_retries = 1
stream_max_retries = 1
"""
RUN = """set -e
ip link set lo up
sleep 300 | "$AGENT_SERVER" > server.log 2>&1 &
for _ in $(seq 300); do grep -q listening server.log && break; sleep 0.1; done
cd work
"$CODEX" exec --skip-git-repo-check --sandbox danger-full-access --json "Say hello to the whale." < /dev/null
"""


@pytest.fixture
def run_codex(tmp_path):
    if not can_isolate():
        pytest.skip("this machine makes no network namespaces")
    if not AGENT_SERVER.exists():
        pytest.skip(f"{AGENT_SERVER} is not built")

    def run(script, config=CONFIG):
        for folder in ("home", "work", "prompts"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
            (tmp_path / folder).mkdir()
        (tmp_path / "home" / "config.toml").write_text(config)
        (tmp_path / "script.json").write_text(json.dumps([{"after": after, "write": write} for after, write in script]))
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(tmp_path / "home"), "CODEX": CODEX,
                       "CODEX_HOME": str(tmp_path / "home"), "MILLRACE_API_KEY": "made-up",
                       "AGENT_SERVER": str(AGENT_SERVER), "MILLRACE_AGENT_PORT": "8080",
                       "MILLRACE_AGENT_SCRIPT": str(tmp_path / "script.json"),
                       "MILLRACE_AGENT_PROMPTS": str(tmp_path / "prompts")}
        done = subprocess.run(["unshare", "-rn", "--kill-child", "--pid", "--fork", "sh", "-c", RUN], cwd=tmp_path, env=environment,
                              capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        prompts = [path.read_text() for path in sorted((tmp_path / "prompts").iterdir(), key=lambda path: int(path.stem))]
        return events, prompts

    return run


def items_of(events, kind):
    return [each["item"] for each in events if each["type"] == "item.completed" and each["item"]["type"] == kind]


def test_codex_runs_a_command_and_answers(run_codex):
    think = "<think>\nFirst the greeting.\n</think>\n\n"
    events, prompts = run_codex([("", think + call("exec_command", cmd="echo hello to the whale")),
                                 ("<tool>", think + "All done.")])
    commands = items_of(events, "command_execution")
    assert [each["exit_code"] for each in commands] == [0]
    assert "hello to the whale" in commands[0]["aggregated_output"]
    assert [each["text"] for each in items_of(events, "agent_message")] == ["All done."]
    assert events[-1]["type"] == "turn.completed"
    usage = events[-1]["usage"]
    assert usage["output_tokens"] > 0 and usage["cached_input_tokens"] >= 0.95 * len(prompts[0].encode())
    # What the model wrote is part of the next prompt, as it wrote it.
    assert len(prompts) == 2 and prompts[1].startswith(prompts[0] + think + "<tool_call>")


def test_codex_calls_a_tool_of_a_namespace(run_codex):
    events, prompts = run_codex([("", call("multi_agent_v1__close_agent", target="nobody")), ("<tool>", "All done.")])
    assert [each["text"] for each in items_of(events, "agent_message")] == ["All done."]
    assert len(prompts) == 2 and "unsupported call" not in prompts[1]
    assert '"name": "multi_agent_v1__close_agent"' in prompts[1][len(prompts[0]):]


def test_codex_compacts_its_conversation(run_codex):
    first = ("", call("exec_command", cmd="seq 20000", max_output_tokens=8000))
    _, prompts = run_codex([first, ("<tool>", "All done.")])
    # The bytes of a prompt are its tokens here. The first prompt fits, and the one with the result of the call does not.
    assert len(prompts) == 2 and len(prompts[1]) > len(prompts[0]) + 10000
    limit = (len(prompts[0]) + len(prompts[1])) // 2
    # Codex leaves the summary to the server where its provider has this name, as that of openai_base_url has.
    config = f"model_auto_compact_token_limit = {limit}\n" + CONFIG.replace('name = "millrace"', 'name = "OpenAI"')
    script = [first, ("<tool>", call("exec_command", cmd="echo more")), ("about to be cut off", "They go up to 20000."),
              ("They go up to 20000.", "All done.")]
    events, prompts = run_codex(script, config)
    assert [each["text"] for each in items_of(events, "agent_message")][-1] == "All done."
    assert "about to be cut off" in prompts[-2] and prompts[-2].startswith(prompts[-3][:len(prompts[0]) // 2])
    assert "They go up to 20000." in prompts[-1] and "about to be cut off" not in prompts[-1] and "<tool>" not in prompts[-1]
