"""Tests tool calls and reasoning with the official client. The small model knows neither, so the server alone makes its
calls valid. What it writes after a prompt that opens reasoning is reasoning."""

import json
import re

import jsonschema
import openai
import pydantic
import pytest
from conftest import client_of
from millrace_server import MODEL
from schemas import OPENAI, openai_validator

TEMPLATE = """{%- if tools %}<tool_call> {{ tools | tojson }}\n{% endif %}
{%- for m in messages %}{{ m.role }}: {{ m.content or '' }}
{%- for c in m.tool_calls or [] %} {{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}\n{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"""
THINKING = TEMPLATE.replace("assistant: ", "assistant: {% if enable_thinking %}<think>\n{% endif %}{# </think> #}")
WHERE = {"type": "object", "properties": {"at": {"type": "string", "maxLength": 10}, "far": {"type": "boolean"}},
         "required": ["at"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "description": "Looks.", "parameters": WHERE}}
         for name in ("look", "listen")]
STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
MESSAGES = [{"role": "user", "content": "Call me Ishmael."}]
LISTEN = {"type": "function", "function": {"name": "listen"}}


@pytest.fixture(scope="module", params=[1, 4])
def tool_server(request, with_template):
    with with_template(TEMPLATE, "--pp-size", request.param) as server:
        yield server


@pytest.fixture(scope="module")
def thinking_server(with_template):
    with with_template(THINKING, "--pp-size", 2) as server:
        yield server


def ask(server, **more):
    request = {"model": MODEL.name, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 80, **more}
    return client_of(server).chat.completions.create(**request)


def biased_to(server, text):
    """Returns the logit bias that samples the last token of `text` wherever it is allowed."""
    tokens = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return {"logit_bias": {str(tokens[-1]): 100}}


def check_calls(calls, names=("look", "listen")):
    for call in calls:
        assert call.type == "function" and call.id and call.function.name in names
        jsonschema.validate(json.loads(call.function.arguments), WHERE)


FORCED = {"tools": TOOLS, "tool_choice": LISTEN}


def test_a_forced_call_streams_what_the_whole_answer_holds(tool_server):
    whole = ask(tool_server, **FORCED).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None
    assert len(whole.message.tool_calls) == 1
    check_calls(whole.message.tool_calls, ["listen"])
    stream = ask(tool_server, **FORCED, stream=True)
    parts = [part for chunk in stream for part in chunk.choices[0].delta.tool_calls or []]
    assert [part.function.name for part in parts if part.function.name] == ["listen"]
    assert "".join(part.function.arguments for part in parts) == whole.message.tool_calls[0].function.arguments
    assert len(parts) > 4


def test_required_calls_are_of_the_tools(tool_server):
    counts, names = set(), set()
    for seed in range(6):
        answer = ask(tool_server, tools=TOOLS, tool_choice="required", seed=seed, temperature=1.5,
                     max_completion_tokens=400).choices[0]
        calls = answer.message.tool_calls
        check_calls(calls if answer.finish_reason == "tool_calls" else calls[:-1])
        counts.add(len(calls))
        names |= {call.function.name for call in calls}
        single = ask(tool_server, tools=TOOLS, tool_choice="required", seed=seed, temperature=1.5,
                     parallel_tool_calls=False).choices[0]
        assert single.finish_reason == "tool_calls" and len(single.message.tool_calls) == 1
        check_calls(single.message.tool_calls)
    assert names == {"look", "listen"} and len(counts) > 1


@pytest.mark.parametrize("parser", [
    "llama3_json", "mistral", "mistral_v11", "mistral_v13", "deepseek_v3", "deepseek_v31", "deepseek_v32", "qwen3_coder",
    "glm45", "glm47", "hy_v3", "hy_v3_preview", "kimi_k2", "minimax_m2", "gemma4", "functiongemma", "pythonic",
    "phi4_mini_json", "phi4", "granite", "nemotron", "command", "harmony"])
def test_calls_in_every_syntax(with_template, parser):
    where = {"type": "object", "properties": {"at": {"enum": ["bow", "stern"]}, "far": {"type": "boolean"}},
             "required": ["at", "far"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": name, "parameters": where}} for name in ("look", "listen")]
    with with_template(TEMPLATE, "--tool-call-parser", parser) as server:
        for choice in ("required", LISTEN):
            request = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "max_completion_tokens": 400}
            whole = ask(server, **request).choices[0]
            assert whole.finish_reason == "tool_calls" and whole.message.content is None
            call, = whole.message.tool_calls
            assert call.function.name in (("listen",) if choice == LISTEN else ("look", "listen"))
            jsonschema.validate(json.loads(call.function.arguments), where)
            parts = [part for chunk in ask(server, **request, stream=True)
                     for part in chunk.choices[0].delta.tool_calls or []]
            assert "".join(part.function.arguments for part in parts) == call.function.arguments


def test_the_clients_own_parser_gets_strict_arguments(tool_server):
    class Where(pydantic.BaseModel):
        place: str = pydantic.Field(max_length=8)
        steps: int = pydantic.Field(ge=1, le=9)

    tool = openai.pydantic_function_tool(Where, name="go")
    answer = client_of(tool_server).chat.completions.parse(
        model=MODEL.name, messages=MESSAGES, tools=[tool], tool_choice="required", parallel_tool_calls=False,
        max_completion_tokens=200)
    assert 1 <= answer.choices[0].message.tool_calls[0].function.parsed_arguments.steps <= 9


def test_an_answer_with_tools_follows_the_format_or_is_a_call(tool_server):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {
        "n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["n"], "additionalProperties": False}}}
    request = {"tools": TOOLS, "response_format": form}
    called = ask(tool_server, **request, parallel_tool_calls=False, max_completion_tokens=200,
                 **biased_to(tool_server, "<")).choices[0]
    assert called.finish_reason == "tool_calls" and called.message.content is None
    check_calls(called.message.tool_calls)
    said = ask(tool_server, **request, **biased_to(tool_server, "{")).choices[0]
    assert said.finish_reason == "stop" and said.message.tool_calls is None
    assert 0 <= json.loads(said.message.content)["n"] <= 99


def test_a_strict_tool_constrains_only_calls(with_template):
    with with_template(TEMPLATE, "--tool-call-parser", "llama3_json") as server:
        text = ask(server, tools=STRICT, temperature=1, seed=4, extra_body={"ignore_eos": True}).choices[0]
        assert text.message.tool_calls is None and len(text.message.content) > 80
        brace = biased_to(server, "{")
        held = ask(server, tools=STRICT, parallel_tool_calls=False, max_completion_tokens=300, **brace).choices[0]
        assert held.finish_reason == "tool_calls"
        check_calls(held.message.tool_calls)
        assert set(json.loads(held.message.tool_calls[0].function.arguments)["at"]) == {"{"}
        assert ask(server, tools=TOOLS, **brace).choices[0].message.content.startswith("{{{{")


def test_the_clients_own_accumulator_reads_the_stream(tool_server):
    with client_of(tool_server).chat.completions.stream(model=MODEL.name, messages=MESSAGES, **FORCED,
                                                        temperature=0, max_completion_tokens=80) as stream:
        for _ in stream:
            pass
        snapshot = stream.current_completion_snapshot
    whole = ask(tool_server, **FORCED)
    call = snapshot.choices[0].message.tool_calls[0]
    assert call.function.name == "listen"
    assert call.function.arguments == whole.choices[0].message.tool_calls[0].function.arguments


def test_a_call_and_its_result_go_back(tool_server):
    first = ask(tool_server, **FORCED).choices[0].message
    # The next request of an agent loop.
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


def test_reasoning_is_apart(thinking_server):
    plain = ask(thinking_server, extra_body={"separate_reasoning": False, "enable_thinking": True})
    apart = ask(thinking_server, reasoning_effort="low")
    message = apart.choices[0].message
    assert message.model_extra["reasoning_content"] == plain.choices[0].message.content.strip()
    assert message.content == ""
    assert apart.usage.completion_tokens_details.reasoning_tokens == apart.usage.completion_tokens == 80
    chunks = list(ask(thinking_server, reasoning_effort="low", stream=True))
    pieces = [chunk.choices[0].delta.model_extra.get("reasoning_content", "") for chunk in chunks]
    assert "".join(pieces) == message.model_extra["reasoning_content"]
    assert ask(thinking_server, reasoning_effort="none").choices[0].message.content


def test_a_budget_ends_reasoning(thinking_server, with_template):
    def bounded(server, **more):
        return ask(server, reasoning_effort="low", extra_body={"thinking_token_budget": 12}, **more)
    free = ask(thinking_server, reasoning_effort="low").choices[0].message.model_extra["reasoning_content"]
    whole = bounded(thinking_server)
    message = whole.choices[0].message
    reasoning = message.model_extra["reasoning_content"]
    assert free.startswith(reasoning) and 0 < len(reasoning) < len(free) and message.content
    assert 12 <= whole.usage.completion_tokens_details.reasoning_tokens < 24 < whole.usage.completion_tokens == 80
    deltas = [chunk.choices[0].delta for chunk in bounded(thinking_server, stream=True)]
    assert "".join(delta.model_extra.get("reasoning_content") or "" for delta in deltas) == reasoning
    assert "".join(delta.content or "" for delta in deltas) == message.content
    with with_template(THINKING, "--speculative-algorithm", "ngram") as alone:
        assert bounded(alone).choices[0].message == message


def test_a_format_applies_after_reasoning_that_was_ended(thinking_server):
    shape = {"type": "json_schema", "json_schema": {"name": "where", "schema": WHERE}}
    message = ask(thinking_server, reasoning_effort="low", response_format=shape, max_completion_tokens=300,
                  extra_body={"thinking_budget": 5}).choices[0].message
    assert message.model_extra["reasoning_content"]
    jsonschema.validate(json.loads(message.content), WHERE)
    called = ask(thinking_server, **FORCED, reasoning_effort="low", max_completion_tokens=300,
                 extra_body={"thinking_budget": 5}).choices[0]
    assert called.finish_reason == "tool_calls"
    check_calls(called.message.tool_calls, ["listen"])


def test_a_model_that_does_not_reason_refuses_a_budget(pp1):
    with pytest.raises(openai.BadRequestError, match="thinking_token_budget"):
        ask(pp1, extra_body={"thinking_token_budget": 12})


@pytest.mark.skipif(not OPENAI.exists(), reason=f"no {OPENAI}")
def test_calls_are_what_openais_schema_says(tool_server):
    validate = openai_validator()
    request = {"messages": MESSAGES, "max_tokens": 80, **FORCED}
    whole = tool_server.post("/v1/chat/completions", request).json()
    assert whole["choices"][0]["message"]["tool_calls"]
    validate(whole, "CreateChatCompletionResponse")
    stream = tool_server.post("/v1/chat/completions", {**request, "stream": True}).text
    events = [event[6:] for event in stream.split("\n\n") if event.startswith("data: {")]
    for event in events:
        validate(json.loads(event), "CreateChatCompletionStreamResponse")


def test_a_model_that_reasons_does_so_before_it_calls(thinking_server):
    # The small model never closes the output.
    reasoned = ask(thinking_server, **FORCED, reasoning_effort="low").choices[0]
    assert reasoned.finish_reason == "length" and reasoned.message.tool_calls is None
    assert reasoned.message.model_extra["reasoning_content"]
    # Reasoning is allowed and does not come: "<think>" and a call begin alike, and the bias continues as a call.
    called = ask(thinking_server, **FORCED, max_completion_tokens=300, **biased_to(thinking_server, "<to")).choices[0]
    check_calls(called.message.tool_calls, ["listen"])


def test_what_cannot_be_is_refused(tool_server, pp1):
    strict = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"unevaluatedItems": False}}}}}
    with pytest.raises(openai.BadRequestError, match=r"tools\[0\].function.parameters: .*unevaluatedItems"):
        ask(tool_server, tools=[strict])
    with pytest.raises(openai.BadRequestError, match="not among the tools"):
        ask(tool_server, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "smell"}})
    with pytest.raises(openai.BadRequestError, match="shows it no tools"):
        ask(pp1, tools=TOOLS)
    with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
        ask(pp1, reasoning_effort="somewhat")


PATCH = r"""start: "*** Begin\n" line~1..4 "*** End"
line: ("+" | "-") /[a-z "]{1,8}/ LF
%import common.LF"""
CUSTOM = [TOOLS[0], {"type": "custom", "custom": {"name": "patch", "description": "Patches.", "format": {
    "type": "grammar", "grammar": {"syntax": "lark", "definition": PATCH}}}}]
NAMED_PATCH = {"type": "custom", "custom": {"name": "patch"}}
IS_PATCH = re.compile(r'\*\*\* Begin\n([+-][a-z "]{1,8}\n){1,4}\*\*\* End')


def test_a_custom_call_holds_a_text_of_its_grammar(tool_server):
    forced = {"tools": CUSTOM, "tool_choice": NAMED_PATCH, "temperature": 1.2, "max_completion_tokens": 400}
    whole = ask(tool_server, **forced, seed=3).choices[0]
    assert whole.finish_reason == "tool_calls"
    call, = whole.message.tool_calls
    assert call.type == "custom" and call.id and call.custom.name == "patch"
    assert IS_PATCH.fullmatch(call.custom.input)
    stream = ask(tool_server, **forced, seed=3, stream=True)
    parts = [part for chunk in stream for part in chunk.choices[0].delta.tool_calls or []]
    assert parts[0].type == "custom" and parts[0].custom["name"] == "patch"
    assert "".join(part.custom["input"] for part in parts) == call.custom.input
    assert len(parts) > 4
    history = [*MESSAGES, whole.message.model_dump(exclude_none=True),
               {"role": "tool", "tool_call_id": call.id, "content": "ok"}]
    assert ask(tool_server, messages=history, tools=CUSTOM, max_completion_tokens=5).choices


def test_a_custom_call_of_a_response_holds_a_text_of_its_grammar(tool_server):
    tools = [{"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}},
             {"type": "function", "name": "look", "parameters": WHERE, "strict": False}]
    request = {"model": MODEL.name, "input": "Call me Ishmael.", "tools": tools, "max_output_tokens": 400, "temperature": 1.2,
               "tool_choice": {"type": "custom", "name": "patch"}, "extra_body": {"seed": 3}}
    item, = client_of(tool_server).responses.create(**request).output
    assert item.type == "custom_tool_call" and IS_PATCH.fullmatch(item.input)
    with client_of(tool_server).responses.stream(**request) as stream:
        deltas = [event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == item.input and len(deltas) > 4


def test_allowed_tools_are_called_and_no_others(tool_server):
    for allowed in (["look"], ["patch"], ["look", "patch"]):
        tools = [tool for tool in (TOOLS[0], NAMED_PATCH) if tool[tool["type"]]["name"] in allowed]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}
        answer = ask(tool_server, tools=CUSTOM, tool_choice=choice, temperature=1.5, seed=1, max_completion_tokens=400)
        for call in answer.choices[0].message.tool_calls:
            assert (call.custom if call.type == "custom" else call.function).name in allowed
    with pytest.raises(openai.BadRequestError, match="listen"):
        choice["allowed_tools"]["tools"] = [LISTEN]
        ask(tool_server, tools=CUSTOM, tool_choice=choice)


@pytest.mark.parametrize("syntax, definition, problem", [
    ("lark", "start: start", "left recursion"), ("lark", "start: x", r"tools\[0\].custom.format: nothing defines 'x'"),
    ("regex", "(?=a)b", r"tools\[0\].custom.format: looking ahead"), ("gbnf", "root ::= x", "wanted lark or regex")])
def test_a_grammar_that_cannot_be_compiled_is_an_error(tool_server, syntax, definition, problem):
    tool = {"type": "custom", "custom": {"name": "patch", "format": {
        "type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}}}
    with pytest.raises(openai.BadRequestError, match=problem):
        ask(tool_server, tools=[tool])


def test_an_image_in_a_result_becomes_a_note(tool_server):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen"}, image]}
    rendered = tool_server.post("/apply-template", {"messages": [*MESSAGES, call, result], "tools": TOOLS}).json()["prompt"]
    assert "[image left out: this model reads text only]" in rendered
    assert ask(tool_server, messages=[*MESSAGES, call, result], tools=TOOLS, max_completion_tokens=5).choices
    with pytest.raises(openai.BadRequestError, match="image"):
        ask(tool_server, messages=[{"role": "user", "content": [image]}])
