"""Tests /v1/messages with Anthropic's official client, and with the recorded requests of Claude Code and LangChain. The
small model knows neither tools nor reasoning, so the server alone makes its calls valid."""

import asyncio
import json
import os
import threading
from pathlib import Path

import anthropic
import httpx
import jsonschema
import pydantic
import pytest
from anthropic.types import RawMessageStreamEvent
from millrace_server import MODEL, PATIENCE_S, ROOT, MillraceServer, wait_until
from schemas import own_validator
from streams import pause, paused_stream, resume
from test_tools import THINKING

RECORDED = Path(os.environ.get("MILLRACE_SHARED_DATA", ROOT.parent / "shared" / "data")) / "agents"
TEMPLATE = """{%- if tools %}<tool_call> {{ tools | tojson }}\n{% endif %}
{%- for m in messages %}{{ m.role }}: {% if m.reasoning_content %}{{ m.reasoning_content }} {% endif %}{{ m.content or '' }}
{%- for c in m.tool_calls or [] %} {{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}\n{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"""
ASK = [{"role": "user", "content": "Call me Ishmael."}]
WHERE = {"type": "object", "properties": {"at": {"type": "string", "maxLength": 10}, "far": {"type": "boolean"}},
         "required": ["at"], "additionalProperties": False}
TOOLS = [{"name": name, "description": "Looks.", "input_schema": WHERE} for name in ("look", "listen")]
EVENT = pydantic.TypeAdapter(RawMessageStreamEvent)


def client_of(server, **options):
    return anthropic.Anthropic(base_url=server.url, timeout=PATIENCE_S, **{"api_key": "none", "max_retries": 0, **options})


def request_of(**more):
    return {"model": MODEL.name, "messages": ASK, "max_tokens": 40, "temperature": 0, **more}


def arguments_of(**more):
    """Returns a request as the client takes it, which has no argument for the temperature."""
    request = request_of(**more)
    temperature = request.pop("temperature")
    return {**request, "extra_body": {"temperature": temperature}}


def ask(server, **more):
    return client_of(server).messages.create(**arguments_of(**more))


def stream(server, **more):
    """Returns the message that the client puts together from a stream."""
    with client_of(server).messages.stream(**arguments_of(**more)) as events:
        for _ in events:
            pass
        return events.get_final_message()


def contents(message):
    """Returns the blocks of a message without ids, which differ between requests."""
    return [{**block.model_dump(exclude_none=True), "id": None} for block in message.content]


@pytest.fixture(scope="module")
def tool_server(with_template):
    with with_template(TEMPLATE, "--pp-size", 2, "--page-size", 16) as server:
        yield server


@pytest.fixture(scope="module")
def thinking_server(with_template):
    with with_template(THINKING, "--pp-size", 2) as server:
        yield server


def test_a_message_whole_and_streamed(server):
    whole = ask(server)
    assert whole.type == "message" and whole.role == "assistant" and whole.model == MODEL.name
    assert whole.id.startswith("msg_") and whole.content[0].text
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.stop_sequence is None
    streamed = stream(server)
    assert contents(streamed) == contents(whole) and streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens <= 40
    used = streamed.usage
    assert used.input_tokens + used.cache_read_input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


async def test_the_asynchronous_client_streams(pp4):
    async with anthropic.AsyncAnthropic(base_url=pp4.url, api_key="none", timeout=PATIENCE_S) as client:
        async def joined():
            async with client.messages.stream(**arguments_of()) as events:
                return "".join([text async for text in events.text_stream])
        texts = await asyncio.gather(*(joined() for _ in range(3)))
    assert set(texts) == {ask(pp4).content[0].text}


def test_a_stop_sequence_is_named(server):
    text = ask(server).content[0].text
    stop = text[len(text) // 2:][:3]
    for message in (ask(server, stop_sequences=["~~~", stop]), stream(server, stop_sequences=["~~~", stop])):
        assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
        assert "".join(block.text for block in message.content) == text[:text.index(stop)]


def test_a_message_that_has_begun_is_continued(pp4):
    text = ask(pp4, max_tokens=24).content[0].text
    begun = [*ASK, {"role": "assistant", "content": text}]
    assert ask(pp4, messages=begun, max_tokens=5).content[0].text
    counted = client_of(pp4).messages.count_tokens(model=MODEL.name, messages=begun).input_tokens
    assert counted > client_of(pp4).messages.count_tokens(model=MODEL.name, messages=ASK).input_tokens


def test_a_forced_call_whole_and_streamed(tool_server):
    forced = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "listen"}, "max_tokens": 120}
    whole = ask(tool_server, **forced)
    call, = whole.content
    assert whole.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "listen"
    assert call.id.startswith("toolu_")
    jsonschema.validate(call.input, WHERE)
    assert contents(stream(tool_server, **forced)) == contents(whole)
    # The result goes back, as an agent's loop has it.
    messages = [*ASK, {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "nothing"}]}]
    again = ask(tool_server, messages=messages, tools=TOOLS)
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens > 100


def test_any_tool_and_single_calls(tool_server):
    for choice in ({"type": "any"}, {"type": "any", "disable_parallel_tool_use": True}):
        message = ask(tool_server, tools=TOOLS, tool_choice=choice, temperature=1.0, max_tokens=300)
        calls = message.content if message.stop_reason == "tool_use" else message.content[:-1]
        assert all(call.type == "tool_use" for call in calls)
        for cut in message.content[len(calls):]:  # by max_tokens, perhaps before the end of the call's name
            begins = [f'<tool_call>\n{{"name": "{tool["name"]}"' for tool in TOOLS]
            assert cut.type == "tool_use" or any(begin.startswith(cut.text.strip()) for begin in begins)
        for call in calls:
            assert call.name in ("look", "listen")
            jsonschema.validate(call.input, WHERE)
        if len(choice) > 1:
            assert message.stop_reason == "tool_use" and len(message.content) == 1


def test_thinking_is_a_block_of_its_own(thinking_server):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with pytest.raises(anthropic.BadRequestError, match="budget_tokens"):
        ask(thinking_server, thinking=thinking)
    whole = ask(thinking_server, thinking=thinking, max_tokens=1100, stop_sequences=["."])
    assert whole.content[0].type == "thinking" and whole.content[0].signature
    assert whole.usage.output_tokens_details.thinking_tokens == whole.usage.output_tokens
    streamed = stream(thinking_server, thinking=thinking, max_tokens=1100, stop_sequences=["."])
    assert contents(streamed) == contents(whole)
    assert ask(thinking_server, thinking={"type": "disabled"}).content[0].type == "text"
    back = [*ASK, {"role": "assistant", "content": [block.model_dump() for block in whole.content]}, *ASK]
    assert ask(thinking_server, messages=back).content


def test_an_output_format_is_kept(tool_server):
    shape = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 12}}, "required": ["title"],
             "additionalProperties": False}
    config = {"effort": "high", "format": {"type": "json_schema", "schema": shape}}
    message = ask(tool_server, output_config=config)
    jsonschema.validate(json.loads(message.content[0].text), shape)


def test_every_event_is_what_both_schemas_say(tool_server):
    own = own_validator(tool_server)
    bodies = [request_of(), request_of(stop_sequences=["e"]),
              request_of(tools=TOOLS, tool_choice={"type": "any"}, max_tokens=150)]
    for body in bodies:
        reply = tool_server.post("/v1/messages?beta=true", {**body, "stream": True})
        assert reply.status_code == 200 and reply.headers["content-type"] == "text/event-stream"
        types = []
        for event in reply.text.split("\n\n")[:-1]:
            name, data = event.split("\n")
            data = json.loads(data.removeprefix("data: "))
            assert name == "event: " + data["type"]
            own(data, "MessageEvent")
            if data["type"] != "ping":
                EVENT.validate_python(data)
            types.append(data["type"])
        assert types[:2] == ["message_start", "ping"] and types[-2:] == ["message_delta", "message_stop"]


def test_the_count_of_tokens_is_what_is_charged(tool_server):
    prompt = {"system": [{"type": "text", "text": "Be brief."}], "tools": TOOLS, "messages": ASK}
    counted = client_of(tool_server).messages.count_tokens(model=MODEL.name, **prompt)
    used = ask(tool_server, **prompt).usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


def test_errors_have_the_classes_of_the_client(pp4):
    with pytest.raises(anthropic.NotFoundError, match="no-such-model") as missing:
        ask(pp4, model="no-such-model")
    assert missing.value.body["error"]["type"] == "not_found_error"
    limit = client_of(pp4).models.list().data[0].max_input_tokens
    long = [{"role": "user", "content": "whale " * limit}]
    with pytest.raises(anthropic.BadRequestError, match=rf"prompt is too long: \d+ tokens > {limit - 1} maximum"):
        ask(pp4, messages=long)
    assert client_of(pp4).messages.count_tokens(model=MODEL.name, messages=long).input_tokens > limit
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].*image"):
        ask(pp4, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        ask(pp4, max_tokens=0)


def test_an_answer_fills_the_context_at_most(pp4):
    limit = client_of(pp4).models.list().data[0].max_input_tokens
    message = ask(pp4, max_tokens=32000, temperature=1.0, messages=[{"role": "user", "content": "whale " * (limit // 6)}])
    used = message.usage
    total = used.input_tokens + used.cache_read_input_tokens + used.output_tokens
    assert message.stop_reason in ("end_turn", "model_context_window_exceeded") and total <= limit


def test_keys_in_either_header():
    with MillraceServer("--api-key", "secret") as server:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            ask(server)
        assert refused.value.body["error"]["type"] == "authentication_error"
        for headers in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
            with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S) as client:
                assert client.post("/v1/messages", json=request_of(max_tokens=2)).status_code == 200
        assert client_of(server, api_key="secret").messages.create(**arguments_of(max_tokens=2)).content
        assert client_of(server, api_key=None, auth_token="secret").messages.create(**arguments_of(max_tokens=2)).content


def test_a_full_server_is_tried_again():
    with MillraceServer("--max-requests-in-flight", 1) as server:
        def in_flight():
            return server.get("/load").json()["server_load"]

        def refused():
            return server.metric("millrace:http_requests_total", route="/v1/messages", status=429)

        pause(server)
        first = threading.Thread(target=ask, args=(server,))
        first.start()
        wait_until(lambda: in_flight() == 1, "the first request")
        with pytest.raises(anthropic.RateLimitError):
            ask(server)
        answers = []
        second = threading.Thread(target=lambda: answers.append(
            client_of(server, max_retries=8).messages.create(**arguments_of(max_tokens=2))))
        second.start()
        wait_until(lambda: refused() >= 2, "a refused try")
        resume(server)
        first.join()
        second.join()
        assert answers and answers[0].content


def test_a_stream_that_breaks_raises():
    with MillraceServer("--pp-size", 2, "--drain-timeout", 0) as server:
        own = own_validator(server)
        # Greedy, since no field of this API keeps a sampled end away.
        stream = paused_stream(server, path="/v1/messages", **request_of(max_tokens=900))
        server.terminate()
        stream.join_whole()
        name, data = stream.text.split("\n\n")[-2].split("\n")
        error = json.loads(data.removeprefix("data: "))
        assert name == "event: error" and error["error"]["type"] == "overloaded_error"
        own(error, "MessageEvent")
        assert server.wait() == 0, server.log()


def test_models_are_listed_for_the_client(pp4):
    models = client_of(pp4).models.list(limit=1000).data
    assert [model.id for model in models] == [MODEL.name]
    model = client_of(pp4).models.retrieve(MODEL.name)
    assert model.type == "model" and model.lifecycle == "active" and model.created_at.year >= 2025
    with pytest.raises(anthropic.NotFoundError):
        client_of(pp4).models.retrieve("no-such-model")
    assert httpx.head(pp4.url + "/api/hello", timeout=PATIENCE_S).status_code == 404


def recorded(name):
    body = json.loads((RECORDED / f"{name}.json").read_text())
    return {**body, "model": MODEL.name}


def usage_of(reply):
    """Returns the last usage of a stream, or that of a message."""
    if "event-stream" not in reply.headers["content-type"]:
        return reply.json()["usage"]
    return [json.loads(line[6:])["usage"] for line in reply.text.split("\n")
            if line.startswith('data: {"type":"message_delta"')][-1]


@pytest.mark.skipif(not RECORDED.exists(), reason="the shared data folder is absent")
def test_recorded_requests_are_answered(tool_server):
    names = sorted(path.stem for path in RECORDED.glob("*.json")
                   if path.stem.startswith(("claude_code_", "langchain_anthropic_")) and path.stem != "claude_code_headers")
    assert len(names) == 6
    for name in names:
        path = "/v1/messages/count_tokens" if "count_tokens" in name else "/v1/messages"
        reply = tool_server.post(path + "?beta=true", recorded(name))
        assert reply.status_code == 200, (name, reply.text)


@pytest.mark.skipif(not RECORDED.exists(), reason="the shared data folder is absent")
def test_the_second_turn_finds_the_first_in_the_cache(tool_server):
    turns = [recorded("claude_code_turn1"), recorded("claude_code_turn2")]
    for turn in turns:
        turn["max_tokens"] = 4
        turn["system"][2]["text"] += " There is no folly of the beasts of the earth." * 8
    # Another session's attribution may not change the prompt.
    turns[1]["system"][0]["text"] = "x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=cli; cch=0f1e2;"
    first, second = (usage_of(tool_server.post("/v1/messages?beta=true", turn)) for turn in turns)
    prompt = first["input_tokens"] + first["cache_read_input_tokens"]
    assert prompt > 300
    assert second["cache_read_input_tokens"] >= 0.95 * prompt, (first, second)
