"""Validates every event of real streams against the server's own schema and against OpenAI's."""

import json

import jsonschema
import pytest
from millrace_server import MillraceServer
from prompts import MESSAGES, PROMPT
from schemas import OPENAI, openai_validator, own_validator
from streams import paused_stream, resume

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BOTH = {"plain": {}, "n": {"n": 3, "seed": 1}, "usage": USAGE, "n, continuous usage": {**CONTINUOUS, "n": 2},
        "token ids": {"return_token_ids": True}, "stop string": {"stop": [" ", "e"]},
        "stop token": {"stop_token_ids": list(range(256, 1024)), "return_token_ids": True}}
KINDS = {
    COMPLETIONS: BOTH | {
        "logprobs": {"logprobs": 2, **USAGE}, "echo": {"echo": True}, "echo, logprobs": {"echo": True, "logprobs": 1},
        "echo alone": {"echo": True, "max_tokens": 0, "logprobs": 0}, "prompts": {"prompt": ["Call me", "It was"], "n": 2},
        "prompts as ids": {"prompt": [[5, 6, 7], [8]], "logprobs": 0, "return_token_ids": True}},
    CHAT: BOTH | {"logprobs": {"logprobs": True, "top_logprobs": 2}, "logprobs, n": {"logprobs": True, "n": 2}},
}
CASES = [(path, kind) for path, kinds in KINDS.items() for kind in kinds]
NAMES = {COMPLETIONS: ("CompletionEvent", "CreateCompletionResponse"),
         CHAT: ("ChatCompletionEvent", "CreateChatCompletionStreamResponse")}


def data_of(text):
    """Returns the data of the events of a stream, parsed. The end stays a string."""
    assert text.endswith("\n\n")
    events = [event for event in text.split("\n\n")[:-1] if event != ":"]
    assert all(event.startswith("data: ") for event in events), text
    return [event[6:] if event == "data: [DONE]" else json.loads(event[6:]) for event in events]


def body_of(path, **fields):
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": PROMPT}
    return {**prompt, "max_tokens": 6, "temperature": 0.5, "stream": True, **fields}


@pytest.fixture(scope="module")
def own(pp4):
    return own_validator(pp4)


@pytest.fixture(scope="module")
def openai_own():
    return openai_validator() if OPENAI.exists() else None


@pytest.mark.parametrize("path, kind", CASES, ids=[f"{path}: {kind}" for path, kind in CASES])
def test_events_are_what_both_schemas_say(pp4, own, openai_own, path, kind):
    reply = pp4.post(path, body_of(path, **KINDS[path][kind]))
    assert reply.status_code == 200, reply.text
    *chunks, end = data_of(reply.text)
    assert end == "[DONE]"
    own_name, openai_name = NAMES[path]
    for event in [*chunks, end]:
        own(event, own_name)
    for chunk in chunks if openai_own else ():
        openai_own(chunk, openai_name)
    check_usage(chunks, KINDS[path][kind].get("stream_options", {}))
    check_choices([choice for chunk in chunks for choice in chunk["choices"]])


def check_usage(chunks, options):
    if not options:
        assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
        return
    assert [chunk for chunk in chunks if not chunk["choices"]] == chunks[-1:]
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert all((chunk["usage"] is not None) == ("continuous_usage_stats" in options) for chunk in chunks[:-1])


def check_choices(choices):
    """Checks that each choice begins with its role and ends once, in its last chunk."""
    for index in {choice["index"] for choice in choices}:
        own = [choice for choice in choices if choice["index"] == index]
        assert [bool(choice["finish_reason"]) for choice in own] == [False] * (len(own) - 1) + [True]
        assert ["role" in choice["delta"] for choice in own if "delta" in choice] in (
            [], [True] + [False] * (len(own) - 1))


@pytest.mark.parametrize("path", NAMES)
def test_an_error_in_mid_stream_is_an_event(path):
    """Yields a paused server without a drain time."""
    with MillraceServer("--pp-size", 2, "--drain-timeout", 0) as server:
        own = own_validator(server)
        stream = paused_stream(server, path=path, **body_of(path, max_tokens=900, ignore_eos=True))
        server.terminate()
        stream.join_whole()
        assert stream.reply.status_code == 200
        *chunks, error = data_of(stream.text)
        for event in [*chunks, error]:
            own(event, NAMES[path][0])
        assert chunks and error["error"]["type"] == "server_error" and error["error"]["code"] is None
        if OPENAI.exists():
            openai_validator()(error, "ErrorResponse")
        assert server.wait() == 0, server.log()


def test_an_aborted_stream_ends_with_that_reason(pp4, own):
    body = body_of(COMPLETIONS, prompt="Call me", max_tokens=900, ignore_eos=True, request_id="to be aborted")
    stream = paused_stream(pp4, **body)
    assert pp4.post("/abort_request", {"request_id": "to be aborted"}).status_code == 200
    resume(pp4)
    stream.join_whole()
    events = data_of(stream.text)
    for event in events:
        own(event, "CompletionEvent")
    assert events[-2]["choices"][0]["finish_reason"] == "abort" and events[-1] == "[DONE]"


def test_the_schema_refuses_what_is_no_event(own):
    chunk = {"id": "x", "object": "text_completion", "created": 1, "model": "m", "system_fingerprint": "f",
             "choices": [{"index": 0, "text": "t", "logprobs": None, "finish_reason": None}]}
    own(chunk, "CompletionEvent")
    choice = chunk["choices"][0]
    for wrong in ("[done]", {}, {**chunk, "usage": {}}, {**chunk, "more": 1}, {**chunk, "object": "chat.completion.chunk"},
                  {**chunk, "choices": [{**choice, "finish_reason": "stop"}]}, {**chunk, "choices": [choice, choice]}):
        with pytest.raises(jsonschema.ValidationError):
            own(wrong, "CompletionEvent")
