"""Calls of tools and reasoning, with the official client. The small model knows of neither: the prompt begins them, and
what it is made to write, braces, goes on as arguments, or what it writes as reasoning."""

import json

import openai
import pytest
from conftest import client_of
from millrace_server import MODEL, MillraceServer
from schemas import OPENAI, openai_validator

TEMPLATE = """{%- if tools %}<tool_call> {{ tools | tojson }}\n{% endif %}
{%- for m in messages %}{{ m.role }}: {{ m.content or '' }}
{%- for c in m.tool_calls or [] %} {{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}\n{% endfor %}
{%- if add_generation_prompt %}assistant: {% if enable_thinking %}<think>\n{% endif %}{% endif %}{# </think> #}"""
TOOLS = [{"type": "function", "function": {"name": name, "description": "Looks.", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}} for name in ("look", "listen")]
MESSAGES = [{"role": "user", "content": "Call me Ishmael."}]
LISTEN = {"type": "function", "function": {"name": "listen"}}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "template.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module", params=[1, 4])
def tool_server(request, template):
    with MillraceServer("--chat-template", template, "--pp-size", request.param) as server:
        yield server


def ask(server, **more):
    request = {"model": MODEL.name, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 24, **more}
    return client_of(server).chat.completions.create(**request)


def forced(server):
    """A call of `listen` with the arguments {{{{…"""
    brace = server.post("/tokenize", {"prompt": "{", "add_special_tokens": False}).json()["tokens"]
    return {"tools": TOOLS, "tool_choice": LISTEN, "logit_bias": {str(brace[-1]): 100}}


def test_a_forced_call_streams_what_the_whole_answer_holds(tool_server):
    whole = ask(tool_server, **forced(tool_server))
    call = whole.choices[0].message.tool_calls[0]
    assert call.function.name == "listen" and call.type == "function" and call.id
    assert call.function.arguments == 24 * "{"
    assert whole.choices[0].message.content is None
    stream = ask(tool_server, **forced(tool_server), stream=True)
    parts = [part for chunk in stream for part in chunk.choices[0].delta.tool_calls or []]
    assert [part.function.name for part in parts if part.function.name] == ["listen"]
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    assert len(parts) > 4


def test_the_clients_own_accumulator_reads_the_stream(tool_server):
    with client_of(tool_server).chat.completions.stream(model=MODEL.name, messages=MESSAGES, **forced(tool_server),
                                                        temperature=0, max_completion_tokens=24) as stream:
        for _ in stream:
            pass
        snapshot = stream.current_completion_snapshot
    whole = ask(tool_server, **forced(tool_server))
    call = snapshot.choices[0].message.tool_calls[0]
    assert call.function.name == "listen"
    assert call.function.arguments == whole.choices[0].message.tool_calls[0].function.arguments


def test_a_call_and_its_result_go_back(tool_server):
    first = ask(tool_server, **forced(tool_server)).choices[0].message
    # What an agent's loop sends next.
    told = [*MESSAGES, first.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "the sea"}]
    answer = ask(tool_server, messages=told, tools=TOOLS)
    assert answer.choices[0].finish_reason in ("stop", "length")
    prompt = tool_server.post("/apply-template", {"messages": told, "tools": TOOLS}).json()["prompt"]
    assert 'listen(' in prompt and "tool: the sea" in prompt and '"name": "look"' in prompt


def test_tools_that_are_not_called_change_nothing_but_the_prompt(tool_server):
    answer = ask(tool_server, tools=TOOLS)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content
    off = ask(tool_server, tools=TOOLS, tool_choice="none")
    plain = ask(tool_server)
    assert off.choices[0].message.content == plain.choices[0].message.content
    assert off.usage.prompt_tokens == plain.usage.prompt_tokens < answer.usage.prompt_tokens


def test_reasoning_is_apart(tool_server):
    plain = ask(tool_server, extra_body={"separate_reasoning": False, "enable_thinking": True})
    apart = ask(tool_server, reasoning_effort="low")
    message = apart.choices[0].message
    assert message.model_extra["reasoning_content"] == plain.choices[0].message.content.strip()
    assert message.content == ""
    assert apart.usage.completion_tokens_details.reasoning_tokens == apart.usage.completion_tokens == 24
    chunks = list(ask(tool_server, reasoning_effort="low", stream=True))
    pieces = [chunk.choices[0].delta.model_extra.get("reasoning_content", "") for chunk in chunks]
    assert "".join(pieces) == message.model_extra["reasoning_content"]
    assert ask(tool_server, reasoning_effort="none").choices[0].message.content


@pytest.mark.skipif(not OPENAI.exists(), reason=f"no {OPENAI}")
def test_calls_are_what_openais_schema_says(tool_server):
    validate = openai_validator()
    request = {"messages": MESSAGES, "max_tokens": 16, **forced(tool_server)}
    whole = tool_server.post("/v1/chat/completions", request).json()
    assert whole["choices"][0]["message"]["tool_calls"]
    validate(whole, "CreateChatCompletionResponse")
    stream = tool_server.post("/v1/chat/completions", {**request, "stream": True}).text
    events = [event[6:] for event in stream.split("\n\n") if event.startswith("data: {")]
    for event in events:
        validate(json.loads(event), "CreateChatCompletionStreamResponse")


def test_what_cannot_be_is_refused(tool_server, pp1):
    with pytest.raises(openai.BadRequestError, match="none of the tools"):
        ask(tool_server, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "smell"}})
    with pytest.raises(openai.BadRequestError, match="shows it no tools"):
        ask(pp1, tools=TOOLS)
    with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
        ask(pp1, reasoning_effort="somewhat")
