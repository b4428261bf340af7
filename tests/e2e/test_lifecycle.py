"""Tests start, stop and clients that disconnect."""

import json
import os
import select
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from conftest import client_of
from millrace_server import MODEL, PATIENCE_S, MillraceServer, run_binary, wait_until
from prompts import PROMPT
from streams import pause_during, paused_stream, resume

LONG = {"model": MODEL.name, "prompt": PROMPT, "max_tokens": 900, "temperature": 0}
DISCONNECTS = "millrace:client_disconnects_total"


def is_idle(server):
    load = server.get("/load").json()
    return load["running"] == 0 and load["waiting"] == 0


class RequestWithoutReply:
    """A request that has been sent, and whose response nobody reads."""

    def __init__(self, server, body):
        self.server = server
        host, port = server.url.removeprefix("http://").rsplit(":", 1)
        body = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self.connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def wait_for_text(self):
        """Waits for the start of the request, or for its end if that comes sooner."""
        wait_until(lambda: not is_idle(self.server) or select.select([self.connection], [], [], 0)[0], "the start")

    def join(self):
        assert self.connection.recv(1)
        self.connection.close()


def test_a_stream_whose_client_leaves_is_ended(server):
    before = server.metric(DISCONNECTS)
    stream = paused_stream(server, **LONG, n=4, ignore_eos=True)
    stream.leave()
    resume(server)
    wait_until(lambda: server.metric(DISCONNECTS) == before + 1, "the server noticing")
    wait_until(lambda: is_idle(server), "the end of the request")


def test_a_request_whose_client_leaves_is_ended(server):
    """A disconnect is noticed without a stream too, where no write can fail."""
    before = server.metric(DISCONNECTS)
    request, = pause_during(server, lambda: [RequestWithoutReply(server, {**LONG, "n": 8, "ignore_eos": True})], count=8)
    request.connection.close()
    resume(server)
    wait_until(lambda: server.metric(DISCONNECTS) == before + 1, "the server noticing")
    wait_until(lambda: is_idle(server), "the end of the request")


@pytest.mark.parametrize("stages", [1, 4])
def test_sigterm_lets_running_streams_finish(stages):
    with MillraceServer("--pp-size", stages, "--drain-timeout", PATIENCE_S) as server:
        with client_of(server) as client:
            stream = client.completions.create(**LONG, stream=True, extra_body={"ignore_eos": True},
                                               stream_options={"include_usage": True})
            events = iter(stream)
            chunks = [next(events)]
            server.terminate()
            chunks += list(events)
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
        assert chunks[-1].usage.completion_tokens == LONG["max_tokens"]
        assert server.wait() == 0, server.log()
        with pytest.raises(httpx.ConnectError):
            server.get("/health")


def test_the_log_is_json_lines_on_demand_and_holds_no_prompt():
    secret = "a prompt that nobody may read"
    with MillraceServer("--log-json") as server:
        body = {"prompt": secret, "max_tokens": 3, "ignore_eos": True, "request_id": "two\nlines"}
        assert server.post("/v1/completions", body).status_code == 200
        httpx.get(server.url + "/nowhere", headers={"X-Request-Id": "mine"}, timeout=PATIENCE_S)
        assert [server.get(probe).status_code for probe in ("/health", "/metrics", "/load", "/live")] == [200] * 4
        server.terminate()
        assert server.wait() == 0
    lines = [json.loads(line) for line in server.output]
    assert all(line.keys() >= {"time", "level", "message"} for line in lines)
    requests = [line for line in lines if line["message"] == "request"]
    assert [(line["id"], line["status"]) for line in requests] == [("cmpl-two?lines", 200), ("mine", 404)]
    assert requests[0]["completion_tokens"] == 3 and requests[0]["total_ms"] >= requests[0]["ttft_ms"] > 0
    assert secret not in "".join(server.output)


def test_sigterm_ends_an_idle_server():
    with MillraceServer() as server:
        server.terminate()
        assert server.wait() == 0, server.log()


@pytest.mark.parametrize("prefix", [[], ["unshare", "--pid", "--fork"]], ids=["as any process", "as the first process"])
def test_a_second_signal_ends_at_once(prefix):
    """A client that reads nothing delays the drain, and the second signal ends it early. The first process of a
    container has no default signal actions."""
    if prefix and subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces of process ids cannot be made here")
    body = json.dumps({**LONG, "n": 64, "ignore_eos": True, "stream": True}).encode()
    with (MillraceServer("--drain-timeout", 86400, "--write-timeout", 86400, prefix=prefix) as server,
          socket.socket() as client):
        process = server.process.pid
        if prefix:
            process = int(Path(f"/proc/{process}/task/{process}/children").read_text())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.url.removeprefix("http://").rsplit(":", 1)
        client.connect((host, int(port)))
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: server.get("/load").json()["server_load"] == 1, "the start of the request")
        os.kill(process, signal.SIGINT)
        wait_until(lambda: "SIGINT: draining" in server.log(), "the drain")
        os.kill(process, signal.SIGTERM)
        assert server.wait() == (128 + signal.SIGTERM if prefix else -signal.SIGTERM)


def check_refusal(result, *wanted):
    """The error is one line, and its exit code differs from that of a crash."""
    assert result.returncode in (1, 2), f"code {result.returncode}: {result.stderr}"
    lines = [line for line in result.stderr.splitlines() if line.startswith("millrace: ")]
    assert len(lines) == 1, result.stderr
    for word in wanted:
        assert str(word) in lines[0]
    assert "terminate called" not in result.stderr


def test_unknown_flag():
    check_refusal(run_binary("serve", "--model-path", MODEL, "--no-such-flag"), "--no-such-flag")
    check_refusal(run_binary("serve", "--model-path", MODEL, "--pp-size", "zero"), "--pp-size")
    check_refusal(run_binary("serve"), "--model-path")
    check_refusal(run_binary("serve", "--model-path", MODEL, "--port", 70000), "--port", 65535)
    check_refusal(run_binary("serve", "--model-path", MODEL, "--mem-fraction-static", "nan"), "--mem-fraction-static", "nan")
    check_refusal(run_binary("serve", "--model-path", MODEL, "--header-timeout", 0), "--header-timeout", "0.01")
    for value in ("[]", "{", "5"):
        check_refusal(run_binary("serve", "--model-path", MODEL, "--default-chat-template-kwargs", value),
                      "--default-chat-template-kwargs", "JSON")
    check_refusal(run_binary("serve", "--model-path", MODEL, "--override-generation-config", '{"top_q": 1}'), "top_q")
    check_refusal(run_binary("serve", "--model-path", MODEL, "--schedule-low-priority-values-first"), "--schedule-policy")
    check_refusal(run_binary("serve", "--model-path", MODEL, "--api-key", ""), "--api-key", "empty")
    check_refusal(run_binary("serve", "--model-path", MODEL, "--admin-api-key", ""), "--admin-api-key", "empty")


def test_an_empty_template_is_refused(tmp_path):
    template = tmp_path / "empty.jinja"
    template.write_text("")
    check_refusal(run_binary("serve", "--model-path", MODEL, "--port", 0, "--chat-template", template), template, "empty")


def test_a_file_of_keys_without_one_is_refused(tmp_path):
    (tmp_path / "empty").write_text("\n \n")
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        check_refusal(run_binary("serve", "--model-path", MODEL, "--port", 0, "--api-key-file", path), "--api-key-file", path)


def test_missing_model_folder(tmp_path):
    check_refusal(run_binary("serve", "--model-path", tmp_path / "nowhere", "--port", 0), tmp_path / "nowhere")


def test_empty_folder(tmp_path):
    check_refusal(run_binary("serve", "--model-path", tmp_path, "--port", 0), tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("fault", ["missing", "truncated"])
def test_model_with_a_bad_file(tmp_path, name, fault):
    for path in MODEL.iterdir():
        if path.name != name:
            (tmp_path / path.name).symlink_to(path)
    if fault == "truncated":
        content = (MODEL / name).read_bytes()
        (tmp_path / name).write_bytes(content[:len(content) // 2])
    check_refusal(run_binary("serve", "--model-path", tmp_path, "--port", 0), name)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja", "generation_config.json"])
@pytest.mark.parametrize("fault", ["folder", "link to nothing"])
def test_a_file_that_may_be_missing_but_not_unreadable(tmp_path, name, fault):
    for path in MODEL.iterdir():
        if path.name != name:
            (tmp_path / path.name).symlink_to(path)
    if fault == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).symlink_to("nothing")
    check_refusal(run_binary("serve", "--model-path", tmp_path, "--port", 0), name)


def test_more_stages_than_layers():
    check_refusal(run_binary("serve", "--model-path", MODEL, "--pp-size", 1000, "--port", 0), "1000")


def test_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check_refusal(run_binary("serve", "--model-path", MODEL, "--port", port), port)


def test_help_and_version():
    for arguments in (["--help"], ["serve", "--help"], ["--version"]):
        result = run_binary(*arguments)
        assert result.returncode == 0
        assert result.stdout.strip() and not result.stderr
    assert "--pp-size" in run_binary("serve", "--help").stdout
