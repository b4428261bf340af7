"""Responses against OpenAI's published schema. Null is allowed wherever a value is, as servers and clients have it."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
import referencing
from millrace_server import MODEL, ROOT
from prompts import MESSAGES, PROMPT

DATA = Path(os.environ.get("MILLRACE_SHARED_DATA", ROOT.parent / "shared" / "data"))
SCHEMA = DATA / "openai" / "openapi.json"
URI = "urn:openapi"

pytestmark = pytest.mark.skipif(not SCHEMA.exists(), reason="no openai/openapi.json in the shared data")


def allow_null(schema):
    return {"anyOf": [relax(schema), {"type": "null"}]} if isinstance(schema, dict) else schema


def relax(node):
    """Null may stand for every property and item; an error's code may be a number, as all servers send it."""
    if isinstance(node, list):
        return [relax(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key == "properties":
            out[key] = {name: allow_null(schema) for name, schema in value.items()}
        elif key in ("items", "additionalProperties"):
            out[key] = allow_null(value)
        else:
            out[key] = relax(value)
    return out


@pytest.fixture(scope="module")
def check():
    document = relax({"components": json.loads(SCHEMA.read_text())["components"]})
    document["components"]["schemas"]["Error"]["properties"]["code"] = {"type": ["string", "integer", "null"]}
    resource = referencing.Resource(document, referencing.jsonschema.DRAFT202012)
    registry = referencing.Registry().with_resource(URI, resource)

    def validate(instance, name):
        schema = {"$ref": f"{URI}#/components/schemas/{name}"}
        jsonschema.Draft202012Validator(schema, registry=registry).validate(instance)

    return validate


def events_of(response):
    lines = [line[len("data: "):] for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_the_check_itself_refuses(check):
    with pytest.raises(jsonschema.ValidationError):
        check({"object": "list"}, "ListModelsResponse")
    with pytest.raises(jsonschema.ValidationError):
        check({"object": "list", "data": [{"id": 5, "object": "model", "created": 1, "owned_by": "x"}]},
              "ListModelsResponse")


def test_models(pp4, check):
    check(pp4.get("/v1/models").json(), "ListModelsResponse")
    check(pp4.get(f"/v1/models/{MODEL.name}").json(), "Model")


@pytest.mark.parametrize("extra", [{}, {"logprobs": 2}, {"n": 2, "seed": 1}, {"echo": True, "logprobs": 1}],
                         ids=["plain", "logprobs", "n", "echo"])
def test_completions(pp4, check, extra):
    body = {"prompt": PROMPT, "max_tokens": 6, **extra}
    check(pp4.post("/v1/completions", body).json(), "CreateCompletionResponse")
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
    for chunk in events_of(pp4.post("/v1/completions", stream)):
        check(chunk, "CreateCompletionResponse")


@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 2}, {"n": 2, "seed": 1}],
                         ids=["plain", "logprobs", "n"])
def test_chat(pp4, check, extra):
    body = {"messages": MESSAGES, "max_tokens": 6, **extra}
    check(pp4.post("/v1/chat/completions", body).json(), "CreateChatCompletionResponse")
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
    for chunk in events_of(pp4.post("/v1/chat/completions", stream)):
        check(chunk, "CreateChatCompletionStreamResponse")


def test_errors(pp4, check):
    check(pp4.post("/v1/completions", {"prompt": PROMPT, "temperature": 9}).json(), "ErrorResponse")
    check(pp4.get("/v1/nowhere").json(), "ErrorResponse")
