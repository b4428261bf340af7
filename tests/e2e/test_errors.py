"""Tests errors through the official client: the class, the message, and retries."""

import asyncio
import contextlib
import socket

import httpx
import openai
import pytest
from conftest import async_client_of, client_of
from millrace_server import MODEL, PATIENCE_S, MillraceServer, wait_until
from prompts import MESSAGES, PROMPT
from streams import pause, resume

SHORT = {"model": MODEL.name, "prompt": PROMPT, "max_tokens": 20, "extra_body": {"ignore_eos": True}}

BAD_VALUES = {
    "temperature": {"temperature": 3},
    "top_p": {"top_p": 1.5},
    "max_tokens": {"max_tokens": -1},
    "n": {"n": 0},
    "stop": {"stop": [""]},
    "logprobs": {"logprobs": 100},
    "presence_penalty": {"presence_penalty": 5},
    "logit_bias": {"logit_bias": {"99999999": 1}},
    "stream_options": {"stream_options": {"include_usage": True}},
    "suffix": {"suffix": "x"},
    "priority": {"extra_body": {"priority": 5}},
    "stop_regex": {"extra_body": {"stop_regex": "a+"}},
    "typical_p": {"extra_body": {"typical_p": 0.9}},
}


@pytest.mark.parametrize("fields", BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_bad_values_are_bad_requests_that_name_the_field(client4, request, fields):
    with pytest.raises(openai.BadRequestError) as error:
        client4.completions.create(model=MODEL.name, prompt=PROMPT, **fields)
    assert error.value.body["message"]
    assert request.node.callspec.id in error.value.body["message"]


def test_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="no-such-model", prompt=PROMPT)
    assert "no-such-model" in error.value.body["message"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_too_long_a_prompt_is_a_bad_request_with_numbers(client):
    limit = client.models.list().data[0].model_extra["max_model_len"]
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model=MODEL.name, prompt=[5] * (limit + 1), max_tokens=1)
    # litellm and agents recognize an overlong prompt by these words.
    assert error.value.body["message"].startswith(f"this model's maximum context length is {limit} tokens")
    assert str(limit + 1) in error.value.body["message"] and error.value.body["code"] == "context_length_exceeded"


def test_a_bad_request_is_not_retried(pp4):
    """The client retries requests that may succeed later. A 400 must not be retried."""
    def bad_requests():
        return pp4.metric("millrace:http_requests_total", status=400)

    before = bad_requests()
    with client_of(pp4, max_retries=3) as client, pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL.name, messages=MESSAGES, temperature=9)
    assert bad_requests() == before + 1


def check_error(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"] and error["type"] and "param" in error
    codes = {401: ["invalid_api_key"], 404: ["model_not_found", None], 429: ["rate_limit_exceeded"]}
    assert error["code"] in codes.get(status, [None])


def test_errors_of_the_protocol(server):
    check_error(server.get("/v1/nowhere"), 404)
    check_error(server.get("/v1/completions"), 405)
    url = server.url + "/v1/completions"
    json_type = {"Content-Type": "application/json"}
    check_error(httpx.post(url, content=b'{"prompt": ', headers=json_type, timeout=PATIENCE_S), 400)
    check_error(httpx.post(url, content=b"[]", headers=json_type, timeout=PATIENCE_S), 400)
    check_error(httpx.post(url, content=b"{}", headers=json_type, timeout=PATIENCE_S), 400)
    check_error(httpx.post(url, content=b"prompt=x", headers={"Content-Type": "text/plain"}, timeout=PATIENCE_S), 415)
    check_error(server.post("/v1/chat/completions", {"messages": []}), 400)
    check_error(server.post("/v1/chat/completions", {"messages": "hello"}), 400)


def test_garbage_on_the_socket_harms_no_request(server):
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    for garbage in (b"\x00" * 64, b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
            connection.sendall(garbage)
            with contextlib.suppress(ConnectionError):
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
    assert server.get("/health").status_code == 200


async def test_a_full_queue_is_a_rate_limit_error():
    """A full queue refuses at once. Accepted requests are answered."""
    with MillraceServer("--max-running-requests", 1, "--max-queued-requests", 2) as server:
        async with async_client_of(server, max_retries=0) as client:
            pause(server)
            asked = asyncio.as_completed([client.completions.create(**SHORT) for _ in range(6)])
            for _ in range(4):  # the queue holds the others
                with pytest.raises(openai.RateLimitError) as refused:
                    await next(asked)
                assert "Retry-After" in refused.value.response.headers
            resume(server)
            answers = [await each for each in asked]
        assert [answer.usage.completion_tokens for answer in answers] == [20] * 2


async def test_the_client_gets_through_a_full_queue_by_its_retries():
    with MillraceServer("--max-running-requests", 1, "--max-queued-requests", 1) as server:
        async with async_client_of(server, max_retries=60) as client:
            pause(server)
            asked = asyncio.gather(*(client.completions.create(**SHORT) for _ in range(4)))
            await asyncio.to_thread(wait_until, lambda: server.metric("millrace:http_requests_total", status=429) >= 3,
                                    "the refusals")
            resume(server)
            answers = await asked
        assert [answer.usage.completion_tokens for answer in answers] == [20] * 4


def test_the_api_key_is_required(tmp_path):
    (tmp_path / "keys").write_text("third\n\n  [fourth] \r\n")
    with MillraceServer("--metrics-public", "--api-key", "secret", "--api-key", "[other]", "--api-key-file", tmp_path / "keys") as server:
        with client_of(server) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        for key in ("secret", "[other]", "third", "[fourth]"):
            with openai.OpenAI(base_url=server.url + "/v1", api_key=key, timeout=PATIENCE_S) as client:
                assert client.models.list().data
        assert server.get("/metrics").status_code == 200 and server.get("/load").status_code == 401
        assert server.get("/health").status_code == 200
