"""Validates responses against OpenAI's published schema."""

import jsonschema
import pytest
from millrace_server import MODEL
from prompts import MESSAGES, PROMPT
from schemas import OPENAI, openai_validator

pytestmark = pytest.mark.skipif(not OPENAI.exists(), reason="no openai/openapi.json in the shared data")


@pytest.fixture(scope="module")
def check():
    return openai_validator()


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


@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 2}, {"n": 2, "seed": 1}],
                         ids=["plain", "logprobs", "n"])
def test_chat(pp4, check, extra):
    body = {"messages": MESSAGES, "max_tokens": 6, **extra}
    check(pp4.post("/v1/chat/completions", body).json(), "CreateChatCompletionResponse")


def test_errors(pp4, check):
    check(pp4.post("/v1/completions", {"prompt": PROMPT, "temperature": 9}).json(), "ErrorResponse")
    check(pp4.get("/v1/nowhere").json(), "ErrorResponse")
