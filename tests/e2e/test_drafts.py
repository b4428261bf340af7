"""Tests speculative decoding: outputs do not change, and clients get them sooner."""

import re

import openai
import pytest
import requests
from conftest import client_of
from millrace_server import MODEL, PATIENCE_S, MillraceServer
from schemas import own_validator

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
PROMPT = "The princess looked at Pierre, and the princess looked at Pierre, and"
SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 0.3, "seed": 5},
    {"temperature": 1.0, "top_p": 0.9, "seed": 6},
    {"temperature": 0, "repetition_penalty": 1.2},
    {"temperature": 0.4, "seed": 7, "frequency_penalty": 0.3, "presence_penalty": 0.2, "logit_bias": {"5": 1}},
    {"temperature": 0, "min_tokens": 150, "stop_token_ids": [11, 12, 13]},
    {"temperature": 0, "stop": ["Pierre, and the"]},
]
SHIP = {
    "type": "object",
    "properties": {"captain_of_the_ship": {"enum": ["Ahab", "Boomer"]}, "is_whaler": {"type": "boolean"}},
    "required": ["captain_of_the_ship", "is_whaler"],
    "additionalProperties": False,
}


def serve(folder, *flags):
    template = folder / "plain.jinja"
    template.write_text(TEMPLATE)
    return MillraceServer("--chat-template", template, *flags)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A server that drafts nothing."""
    with serve(tmp_path_factory.mktemp("plain"), "--speculative-num-draft-tokens", 0) as server:
        yield server


@pytest.fixture(scope="module", params=[(1, 0, 8), (3, 2, 20)])
def drafting(request, tmp_path_factory):
    stages, depth, most = request.param
    with serve(tmp_path_factory.mktemp("drafting"), "--speculative-algorithm", "NGRAM", "--pp-size", stages,
               "--speculative-num-draft-tokens", most, "--pp-async-batch-depth", depth) as server:
        yield server


def drafts(server, source, fate):
    text = requests.get(server.url + "/metrics", timeout=PATIENCE_S).text
    return int(re.search(rf'millrace:draft_tokens_total{{source="{source}",fate="{fate}"}} (\d+)', text)[1])


def complete(server, **more):
    request = {"model": MODEL.name, "prompt": PROMPT, "max_tokens": 200, "logprobs": 2, "return_token_ids": True, **more}
    answer = requests.post(server.url + "/v1/completions", json=request, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def chat(server, **more):
    return client_of(server).chat.completions.create(
        model=MODEL.name, messages=[{"role": "user", "content": PROMPT}], max_completion_tokens=120, temperature=0, **more)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_answers_are_the_same_bits(plain, drafting, sampling):
    assert complete(drafting, **sampling) == complete(plain, **sampling)


def test_concurrent_answers_are_the_same_bits(plain, drafting):
    together = {"prompt": [PROMPT, "Call me Ishmael.", PROMPT], "n": 3, "temperature": 0.5, "seed": 1}
    assert complete(drafting, **together) == complete(plain, **together)


def test_repeated_text_is_drafted(drafting):
    before = drafts(drafting, "ngram", "accepted")
    complete(drafting, temperature=0)
    assert drafts(drafting, "ngram", "accepted") > before


def test_a_right_prediction_comes_in_few_steps(plain, drafting):
    wanted = chat(plain)
    assert wanted.usage.completion_tokens_details is None
    for server in plain, drafting:
        found = chat(server, prediction={"type": "content", "content": wanted.choices[0].message.content})
        assert found.choices == wanted.choices
        details = found.usage.completion_tokens_details
        if server is plain:  # without drafts
            assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (0, 0)
        else:
            assert details.accepted_prediction_tokens > 80
            assert details.rejected_prediction_tokens < 10
        own_validator(server)(found.model_dump(mode="json", exclude_unset=True), "ChatCompletionResponse")


def test_a_prediction_with_changes_is_followed(plain, drafting):
    wanted = chat(plain)
    words = wanted.choices[0].message.content.split(" ")
    words[20] = "whale"
    del words[40:42]
    parts = [{"type": "text", "text": " ".join(words)}]
    found = chat(drafting, prediction={"type": "content", "content": parts}, stream=True,
                 stream_options={"include_usage": True})
    text, usage = "", None
    for chunk in found:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == wanted.choices[0].message.content
    assert usage.completion_tokens_details.accepted_prediction_tokens > 40
    assert usage.completion_tokens_details.rejected_prediction_tokens > 0


def test_a_prediction_of_something_else_changes_nothing(plain, drafting):
    found = chat(drafting, prediction={"type": "content", "content": "No whale was ever seen there. " * 50})
    assert found.choices == chat(plain).choices


def test_tokens_forced_by_a_format_are_drafted(plain, drafting):
    form = {"type": "json_schema", "json_schema": {"name": "ship", "strict": True, "schema": SHIP}}
    before = drafts(drafting, "grammar", "accepted")
    for seed in range(4):
        sampling = {"response_format": form, "seed": seed}
        assert chat(drafting, **sampling).choices == chat(plain, **sampling).choices
    assert drafts(drafting, "grammar", "accepted") > before


@pytest.mark.parametrize("prediction, param", [
    ("whale", "prediction"),
    ({}, "prediction"),
    ({"type": "text", "content": "whale"}, "prediction"),
    ({"type": "content"}, "prediction"),
    ({"type": "content", "content": 5}, "prediction.content"),
    ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content"),
])
def test_an_invalid_prediction_is_refused(drafting, prediction, param):
    with pytest.raises(openai.BadRequestError) as refused:
        chat(drafting, extra_body={"prediction": prediction})
    assert refused.value.param == param
