"""Tests structured output with real clients and an independent validator. The small model knows no JSON, so only the
server makes its outputs valid."""

import json
import random
import re

import jsonschema
import openai
import pydantic
import pytest
from conftest import client_of
from millrace_server import MODEL
from schemas import OPENAI, openai_validator

MESSAGES = [{"role": "user", "content": "Call me Ishmael."}]
TEMPLATE = """{%- for m in messages %}{{ m.role }}: {{ m.content or '' }}\n{% endfor %}assistant: """
THINKING = TEMPLATE + "{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "ranks": {"type": "array", "items": {"enum": ["mate", "captain", "harpooneer"]}, "minItems": 1, "maxItems": 3},
        "ship": {"anyOf": [{"$ref": "#/$defs/ship"}, {"type": "null"}]},
    },
    "required": ["name", "age", "ranks", "ship"],
    "additionalProperties": False,
    "$defs": {"ship": {"type": "object", "properties": {"masts": {"type": "integer", "minimum": 1, "maximum": 5},
                                                        "sunk": {"type": "boolean"}},
                       "required": ["masts"], "additionalProperties": False}},
}


@pytest.fixture(scope="module", params=[1, 4])
def server(request, with_template):
    with with_template(TEMPLATE, "--pp-size", request.param) as started:
        yield started


def ask(server, **more):
    request = {"model": MODEL.name, "messages": MESSAGES, "max_completion_tokens": 500, "temperature": 1.2, "seed": 7, **more}
    return client_of(server).chat.completions.create(**request)


def json_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def test_answers_are_what_the_schema_says(server):
    for seed in range(6):
        answer = ask(server, response_format=json_schema(PERSON), seed=seed)
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)


def test_the_clients_own_parser_gets_its_class(server):
    class Ship(pydantic.BaseModel):
        masts: int = pydantic.Field(ge=1, le=3)
        flag: str | None = pydantic.Field(max_length=8)

    class Fleet(pydantic.BaseModel):
        ships: list[Ship] = pydantic.Field(min_length=2, max_length=2)

    parsed = client_of(server).chat.completions.parse(model=MODEL.name, messages=MESSAGES, response_format=Fleet,
                                                      max_completion_tokens=500)
    assert len(parsed.choices[0].message.parsed.ships) == 2


def test_a_stream_and_the_whole_are_the_same(server):
    request = {"response_format": json_schema(PERSON), "seed": 5}
    whole = ask(server, **request).choices[0].message.content
    chunks = list(ask(server, **request, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len(chunks) > 5


def test_equal_concurrent_requests_get_equal_answers(server):
    answer = ask(server, response_format=json_schema(PERSON), temperature=0, n=3)
    assert len({choice.message.content for choice in answer.choices}) == 1


def test_any_object(server):
    for seed in range(4):
        answer = ask(server, response_format={"type": "json_object"}, seed=seed)
        text = answer.choices[0].message.content
        assert text.startswith("{")
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("field", ["regex", "guided_regex"])
def test_a_regular_expression(server, field):
    pattern = r"(\d{3}-){2}[a-f]+\.(org|com)"
    answer = ask(server, extra_body={field: pattern})
    assert re.fullmatch(pattern, answer.choices[0].message.content)


def test_choices_and_grammars(server):
    words = ["white", "whale", "whales"]
    assert ask(server, extra_body={"guided_choice": words}).choices[0].message.content in words
    structured = {"structured_outputs": {"choice": words}}
    assert ask(server, extra_body=structured).choices[0].message.content in words
    grammar = 'root ::= "[" digit ("," digit){2} "]"\ndigit ::= [0-9]'
    for field in ("grammar", "ebnf", "guided_grammar"):
        assert re.fullmatch(r"\[\d,\d,\d\]", ask(server, extra_body={field: grammar}).choices[0].message.content)


def test_completions_take_response_formats(server):
    client = client_of(server)
    answer = client.completions.create(model=MODEL.name, prompt=["One", "Two"], max_tokens=300, n=2,
                                       extra_body={"json_schema": json.dumps(PERSON["$defs"]["ship"])})
    assert len(answer.choices) == 4
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.text), PERSON["$defs"]["ship"])


def test_a_short_answer_ends_by_length(server):
    answer = ask(server, response_format=json_schema(PERSON), max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length"


def test_reasoning_precedes_the_format(with_template):
    with with_template(THINKING) as server:
        form = {"response_format": json_schema(PERSON)}
        # The small model never closes the output.
        reasoned = ask(server, **form, reasoning_effort="low", max_completion_tokens=50).choices[0]
        assert reasoned.finish_reason == "length"
        assert reasoned.message.model_extra["reasoning_content"] and not reasoned.message.content
        opening = server.post("/tokenize", {"prompt": "<", "add_special_tokens": False}).json()["tokens"][-1]
        plain = ask(server, **form, reasoning_effort="none", logit_bias={str(opening): -100}).choices[0]
        jsonschema.validate(json.loads(plain.message.content), PERSON)


@pytest.mark.parametrize("body, told", [
    ({"response_format": {"type": "yaml"}}, "type 'yaml' is not supported"),
    ({"response_format": json_schema({"unevaluatedItems": False})}, "the keyword 'unevaluatedItems' is not supported"),
    ({"response_format": json_schema({"$ref": "#/nowhere"})}, "there is no '#/nowhere'"),
    ({"extra_body": {"regex": "(a"}}, "wanted ')'"),
    ({"extra_body": {"ebnf": "root ::= other"}}, "nothing defines 'other'"),
    ({"extra_body": {"ebnf": "root ::= root \"a\" | \"b\""}}, "left recursion"),
    ({"extra_body": {"regex": "a", "guided_choice": ["b"]}}, "says already what the answer has to be"),
    ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "wanted one"),
])
def test_unsupported_formats_are_refused(server, body, told):
    with pytest.raises(openai.BadRequestError, match=re.escape(told)):
        ask(server, **body)


def test_formats_and_free_answers_in_one_batch(server):
    """Mixes all response formats with free output in one batch. Each output follows its own format, and free output is
    unchanged."""
    rng = random.Random(3)
    free = ask(server, seed=1, max_completion_tokens=40).choices[0].message.content
    client = client_of(server)
    bodies = [{"seed": 1, "max_completion_tokens": 40} if rng.random() < 0.3 else
              {"seed": rng.randrange(1000), "response_format": json_schema(PERSON)} for _ in range(24)]
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda body: client.chat.completions.create(
            **{"model": MODEL.name, "messages": MESSAGES, "max_completion_tokens": 500, "temperature": 1.2, **body}), bodies))
    for body, answer in zip(bodies, answers, strict=True):
        content = answer.choices[0].message.content
        if "response_format" in body:
            jsonschema.validate(json.loads(content), PERSON)
        else:
            assert content == free


@pytest.mark.skipif(not OPENAI.exists(), reason=f"no {OPENAI}")
def test_answers_are_what_openais_schema_says(server):
    answer = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 100,
                                                  "response_format": json_schema(PERSON)}).json()
    openai_validator()(answer, "CreateChatCompletionResponse")
