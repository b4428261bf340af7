"""Tests /v1/responses with the official client. The small model knows neither tools nor reasoning, so the server alone
makes its calls valid. The event types are those of the client's own models."""

import json
import os
import threading
from pathlib import Path

import httpx
import jsonschema
import openai
import pydantic
import pytest
from conftest import client_of
from millrace_server import MODEL, ROOT, MillraceServer, wait_until
from openai.types.responses import Response, ResponseStreamEvent
from schemas import OPENAI, openai_validator
from streams import pause, resume

TEMPLATE = """{%- if tools %}<tool_call> {{ tools | tojson }}
{% endif %}
{%- for m in messages %}{{ m.role }}: {{ m.content or '' }}
{%- for c in m.tool_calls or [] %} {{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}
{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"""
RECORDED_TEMPLATE = TEMPLATE.replace("{{ m.role }}: ", "{{ m.role }}: {{ m.reasoning_content or '' }} ")
RECORDED = Path(os.environ.get("MILLRACE_SHARED_DATA", ROOT.parent / "shared" / "data")) / "agents"
PAGE_TOKENS = 64
THINKING = TEMPLATE.replace("assistant: ", "assistant: <think>\n{# </think> #}")
WHERE = {"type": "object", "properties": {"at": {"type": "string", "maxLength": 10}, "far": {"type": "boolean"}},
         "required": ["at", "far"], "additionalProperties": False}
LOOK = {"type": "function", "name": "look", "description": "Looks.", "strict": True, "parameters": WHERE}
SEA = {"type": "namespace", "name": "sea", "description": "Of the sea.", "tools": [{**LOOK, "name": "sail"}]}
WRITE = {"type": "custom", "name": "write", "description": "Writes."}
ASK = {"model": MODEL.name, "input": "Call me Ishmael.", "temperature": 0, "max_output_tokens": 60}
EVENT = pydantic.TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module", params=[1, 4])
def server(request, with_template):
    with with_template(TEMPLATE, "--pp-size", request.param) as server:
        yield server


@pytest.fixture(scope="module")
def thinking_server(with_template):
    with with_template(THINKING, "--pp-size", 2) as server:
        yield server


@pytest.fixture
def client(server):
    with client_of(server, max_retries=0) as client:
        yield client


def raw_events(server, path="/v1/responses", **body):
    """Returns the events of a stream as they are on the wire, once each has been validated by the client's types."""
    method = "POST" if body else "GET"
    reply = httpx.request(method, server.url + path, json={**ASK, "stream": True, **body} if body else None, timeout=120)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"]
        assert event["sequence_number"] == len(events)
        events.append(event)
        # This code is not in the client's list, but Codex knows it.
        if (event.get("response", {}).get("error") or {}).get("code") != "context_length_exceeded":
            EVENT.validate_python(event)
    return events


def test_a_stream_gives_what_a_whole_response_gives(client):
    whole = client.responses.create(**ASK)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.output_text and whole.usage.output_tokens == 60
    text, final = "", None
    for event in client.responses.create(**ASK, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        final = event
    assert text == whole.output_text
    assert final.type == "response.incomplete" and final.response.output_text == text
    assert final.response.usage.input_tokens == whole.usage.input_tokens


def test_the_stream_helper_accepts_every_event(client):
    # The answer ends by itself, since the helper wants a completed response.
    ask = {**ASK, "max_output_tokens": 300, "text": {"format": {"type": "json_schema", "name": "n", "strict": True, "schema": WHERE}}}
    with client.responses.stream(**ask) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_response()
    assert types[0] == "response.created" and types[-1] == "response.completed"
    assert final.status == "completed"
    jsonschema.validate(json.loads(final.output_text), WHERE)


def test_events_are_those_of_the_client_types(server):
    plain = raw_events(server, input="Call me Ishmael.")
    assert [each["type"] for each in plain[:4]] == ["response.created", "response.in_progress",
                                                   "response.output_item.added", "response.content_part.added"]
    called = raw_events(server, tools=[LOOK, SEA, WRITE], tool_choice="required")
    assert "response.function_call_arguments.done" in {each["type"] for each in called} or \
        "response.custom_tool_call_input.done" in {each["type"] for each in called}
    for events in (plain, called):
        Response.model_validate(events[-1]["response"])


@pytest.mark.skipif(not OPENAI.exists(), reason="no openai/openapi.json in the shared data")
def test_responses_and_events_are_those_of_the_published_schema(server, thinking_server):
    check = openai_validator()
    asked = [raw_events(server, input="x"), raw_events(server, tools=[LOOK, SEA], tool_choice="required"),
             raw_events(thinking_server, input="x", include=["message.output_text.logprobs"], top_logprobs=1)]
    for event in {each["type"]: each for events in asked for each in events}.values():
        check(event, "ResponseStreamEvent")
    id = asked[0][-1]["response"]["id"]
    check(server.get(f"/v1/responses/{id}").json(), "Response")


def test_reasoning_is_an_item(thinking_server):
    events = raw_events(thinking_server, input=ASK["input"])
    assert [each["type"] for each in events[2:5]] == ["response.output_item.added", "response.content_part.added",
                                                     "response.reasoning_text.delta"]
    item = events[-1]["response"]["output"][0]
    deltas = "".join(each["delta"] for each in events if each["type"] == "response.reasoning_text.delta")
    assert item["type"] == "reasoning" and item["content"][0]["text"] == deltas
    assert events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_structured_output_is_parsed(client):
    class Where(pydantic.BaseModel):
        at: str = pydantic.Field(max_length=10)
        far: bool

    parsed = client.responses.parse(**{**ASK, "max_output_tokens": 300}, text_format=Where)
    assert isinstance(parsed.output_parsed, Where)


@pytest.mark.parametrize("choice", [{"type": "function", "name": "look"}, {"type": "function", "name": "sail"},
                                    {"type": "custom", "name": "write"}])
def test_a_named_tool_is_called(client, choice):
    response = client.responses.create(**{**ASK, "max_output_tokens": 200}, tools=[LOOK, SEA, WRITE, {"type": "web_search"}],
                                       tool_choice=choice)
    call = response.output[-1]
    assert call.name == choice["name"] and call.id != call.call_id
    if choice["type"] == "custom":
        assert call.type == "custom_tool_call" and isinstance(call.input, str)
        return
    assert call.type == "function_call"
    assert getattr(call, "namespace", None) == ("sea" if call.name == "sail" else None)
    jsonschema.validate(json.loads(call.arguments), WHERE)


def test_a_conversation_goes_on_over_the_store(client):
    first = client.responses.create(**ASK, tools=[LOOK], tool_choice="required", instructions="Look around.")
    call = first.output[-1]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Water."}
    stored = client.responses.create(**{**ASK, "input": [output]}, tools=[LOOK], previous_response_id=first.id)
    whole = [{"role": "user", "content": ASK["input"]}, *[item.model_dump(exclude_none=True) for item in first.output], output]
    sent = client.responses.create(**{**ASK, "input": whole}, tools=[LOOK], store=False)
    assert stored.output_text == sent.output_text
    assert stored.usage.input_tokens == sent.usage.input_tokens
    items = client.responses.input_items.list(stored.id, order="asc")
    assert [item.type for item in items][-1] == "function_call_output"


def test_a_stored_response_is_fetched_and_deleted(server, client):
    events = raw_events(server, metadata={"ship": "Pequod"})
    id = events[-1]["response"]["id"]
    fetched = client.responses.retrieve(id)
    assert fetched.metadata == {"ship": "Pequod"} and fetched.to_dict() == events[-1]["response"]
    assert raw_events(server, f"/v1/responses/{id}?stream=true") == events
    rest = list(client.responses.retrieve(id, stream=True, starting_after=2))
    assert [event.sequence_number for event in rest] == list(range(3, len(events)))
    client.responses.delete(id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(id)


def test_a_response_in_the_background_ends(client):
    started = client.responses.create(**ASK, background=True)
    assert started.status in ("queued", "in_progress") and started.background
    ended = wait_until(lambda: (now := client.responses.retrieve(started.id)).status == "incomplete" and now, "the end")
    assert ended.output_text == client.responses.create(**ASK).output_text


def test_a_response_in_the_background_is_cancelled(server, client):
    pause(server)
    started = client.responses.create(**ASK, background=True)
    cancelled = client.responses.cancel(started.id)
    resume(server)
    assert cancelled.status == "cancelled"
    whole = client.responses.create(**ASK)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(whole.id)


def test_logprobs_are_those_of_a_chat(client):
    response = client.responses.create(**ASK, include=["message.output_text.logprobs"], top_logprobs=2)
    chat = client.chat.completions.create(model=MODEL.name, temperature=0, max_completion_tokens=60, logprobs=True,
                                          top_logprobs=2, messages=[{"role": "user", "content": ASK["input"]}])
    expected = [(each.token, each.logprob) for each in chat.choices[0].logprobs.content]
    assert [(each.token, each.logprob) for each in response.output[0].content[0].logprobs] == expected


def test_errors_name_the_member(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**ASK, tools=[{"type": "hammer"}])
    assert refused.value.param == "tools[0].type"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**ASK, previous_response_id="resp_none")
    assert refused.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**{**ASK, "model": "no-such-model"})


def test_a_prompt_that_is_too_long_fails_as_a_response(server, client):
    long = "whale " * 40000
    events = raw_events(server, input=long)
    assert [each["type"] for each in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{**ASK, "input": long})
    assert refused.value.code == "context_length_exceeded"
    turns = [{"role": "user", "content": long}, {"role": "assistant", "content": "Aye."}, {"role": "user", "content": "Call me"}]
    assert client.responses.create(**{**ASK, "input": turns}, truncation="auto").output_text


def test_tokens_are_counted(client):
    counted = client.responses.input_tokens.count(model=MODEL.name, input=ASK["input"])
    assert counted.input_tokens == client.responses.create(**ASK).usage.input_tokens


def test_the_second_turn_finds_the_first_in_the_cache(client):
    turn = [{"role": "user", "content": "Call me Ishmael. " * 40}]
    first = client.responses.create(**{**ASK, "input": turn}, store=False)
    turn += [item.model_dump(exclude_none=True) for item in first.output] + [{"role": "user", "content": "Go on."}]
    second = client.responses.create(**{**ASK, "input": turn}, store=False)
    # Every page that the prompt fills.
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens // PAGE_TOKENS * PAGE_TOKENS > 0


@pytest.mark.skipif(not RECORDED.exists(), reason="the shared data folder is absent")
@pytest.mark.parametrize("thinks", [False, True])
def test_the_second_turn_of_codex_finds_the_first_in_the_cache(tmp_path, thinks):
    template = tmp_path / "tools.jinja"
    template.write_text(RECORDED_TEMPLATE if thinks else TEMPLATE)
    with MillraceServer("--chat-template", template, "--pp-size", 2, "--page-size", 16) as server:
        usages = []
        for name in ("codex_turn1", "codex_turn2"):
            body = json.loads((RECORDED / f"{name}.json").read_text())
            # What differs between the turns of one session besides the input, and between sessions.
            metadata = {"turn": name, **body.get("client_metadata", {})}
            reply = raw_events(server, **{**body, **ASK, "input": body["input"], "max_output_tokens": 4, "client_metadata": metadata})
            usages.append(reply[-1]["response"]["usage"])
        first, second = usages
        assert first["input_tokens"] > 300
        assert second["input_tokens_details"]["cached_tokens"] >= 0.95 * first["input_tokens"], usages


async def test_the_asynchronous_client_streams(server):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
        events = [event async for event in await client.responses.create(**ASK, stream=True)]
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"


def test_langchain_speaks_responses(server):
    langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    chat = langchain_openai.ChatOpenAI(base_url=server.url + "/v1", model=MODEL.name, api_key="none", max_tokens=40,
                                       temperature=0, use_responses_api=True)
    whole = chat.invoke("Call me Ishmael.")
    chunks = list(chat.stream("Call me Ishmael."))
    total = sum(chunks[1:], start=chunks[0])
    assert whole.text and total.text == whole.text
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_a_full_server_is_tried_again():
    with MillraceServer("--max-requests-in-flight", 1) as server:
        def in_flight():
            return server.get("/load").json()["server_load"]

        def refused():
            return server.metric("millrace:http_requests_total", route="/v1/responses", status=429)

        def ask(max_retries):
            with client_of(server, max_retries=max_retries) as client:
                return client.responses.create(**ASK)

        pause(server)
        first = threading.Thread(target=ask, args=(0,))
        first.start()
        wait_until(lambda: in_flight() == 1, "the first request")
        with pytest.raises(openai.RateLimitError) as error:
            ask(0)
        assert int(error.value.response.headers["retry-after"]) > 0
        answers = []
        second = threading.Thread(target=lambda: answers.append(ask(8)))
        second.start()
        wait_until(lambda: refused() >= 2, "a refused try")
        resume(server)
        first.join()
        second.join()
        assert answers and answers[0].output_text
