"""Tests streams: content equal to whole responses, and the wire format that clients parse."""

import json
import subprocess

import pytest
from conftest import async_client_of
from millrace_server import MODEL, PATIENCE_S
from prompts import GREEDY, MESSAGES, PROMPT, SAMPLINGS, SEEDED, ids_of, with_ids


def test_streamed_completion_equals_the_whole_one(client):
    for sampling in SAMPLINGS.values():
        request = {"model": MODEL.name, "prompt": PROMPT, "max_tokens": 40, **with_ids(sampling)}
        whole = client.completions.create(**request).choices[0]
        chunks = [chunk.choices[0] for chunk in client.completions.create(**request, stream=True)]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert sum((ids_of(chunk) for chunk in chunks if "token_ids" in chunk.model_extra), []) == ids_of(whole)
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == [whole.finish_reason]


def test_streamed_chat_equals_the_whole_one(client):
    request = {"model": MODEL.name, "messages": MESSAGES, "max_tokens": 40, **SEEDED}
    whole = client.chat.completions.create(**request).choices[0]
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**request, stream=True)]
    assert chunks[0].delta.role == "assistant"
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason


async def test_async_client_streams_too(server):
    async with async_client_of(server) as client:
        request = {"model": MODEL.name, "messages": MESSAGES, "max_tokens": 24, **SEEDED}
        whole = await client.chat.completions.create(**request)
        stream = await client.chat.completions.create(**request, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == whole.choices[0].message.content


def test_usage_comes_last_when_asked_for(client4):
    request = {"model": MODEL.name, "prompt": PROMPT, "max_tokens": 10, "stream": True, **GREEDY}
    plain = list(client4.completions.create(**request))
    assert all(chunk.usage is None for chunk in plain)
    chunks = list(client4.completions.create(**request, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 10
    assert all(chunk.usage is None for chunk in chunks[:-1])
    continuous = list(client4.completions.create(
        **request, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    counts = [chunk.usage.completion_tokens for chunk in continuous]
    assert counts == sorted(counts) and counts[-1] == 10


def test_several_choices_stream_concurrently(client4):
    request = {"model": MODEL.name, "prompt": PROMPT, "max_tokens": 16, "n": 3, **SEEDED}
    whole = [choice.text for choice in client4.completions.create(**request).choices]
    texts = ["", "", ""]
    for chunk in client4.completions.create(**request, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == whole


def curl(server, path, body):
    """Returns headers and body as curl shows them."""
    command = ["curl", "--silent", "--show-error", "--no-buffer", "--include", "--max-time", str(PATIENCE_S),
               server.url + path, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_wire_format_of_a_stream(pp4, chat):
    path = "/v1/chat/completions" if chat else "/v1/completions"
    content = {"messages": MESSAGES} if chat else {"prompt": PROMPT}
    transcript = curl(pp4, path, {**content, "max_tokens": 8, "temperature": 0, "stream": True,
                                  "stream_options": {"include_usage": True}})
    head, _, body = transcript.replace("\r\n", "\n").partition("\n\n")
    assert head.splitlines()[0] == "HTTP/1.1 200 OK"
    assert "content-type: text/event-stream" in head.lower()
    events = [event for event in body.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events[-1] == "data: [DONE]"
    assert body.endswith("data: [DONE]\n\n")
    chunks = [json.loads(event[len("data: "):]) for event in events[:-1]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-" if chat else "cmpl-")
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if chat else "text_completion"}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 8
    if chat:
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_connections_are_kept_alive(pp4):
    body = json.dumps({"prompt": PROMPT, "max_tokens": 2, "stream": True})
    request = [pp4.url + "/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    command = ["curl", "--silent", "--max-time", str(PATIENCE_S), "--write-out", "\nconnects %{num_connects}\n",
               *request, "--next", "--silent", "--max-time", str(PATIENCE_S), "--write-out",
               "\nconnects %{num_connects}\n", *request]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    assert [line for line in output.splitlines() if line.startswith("connects")] == ["connects 1", "connects 0"]
