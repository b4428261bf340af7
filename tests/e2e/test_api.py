"""Tests the endpoints with the official client and with plain HTTP."""

import openai
import pytest
from conftest import client_of
from millrace_server import MODEL, MillraceServer
from prompts import GREEDY, MESSAGES, PROMPT, PROMPTS, SEEDED


def test_models(client, server):
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL.name]
    assert client.models.retrieve(MODEL.name).id == MODEL.name
    assert models[0].model_extra["max_model_len"] > 0


def test_a_model_with_several_names():
    with MillraceServer("--served-model-name", "first", "org/second") as server, client_of(server) as client:
        assert [model.id for model in client.models.list().data] == ["first", "org/second"]
        for name in ("first", "org/second"):
            assert client.models.retrieve(name).id == name
            assert client.completions.create(model=name, prompt=PROMPT, max_tokens=1).model == name
            chunks = list(client.chat.completions.create(model=name, messages=MESSAGES, max_tokens=1, stream=True))
            assert {chunk.model for chunk in chunks} == {name}


def test_completion(client):
    answer = client.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=12, **GREEDY)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == MODEL.name
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL.name, messages=MESSAGES, max_completion_tokens=12, **GREEDY)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content is not None
    assert 1 <= answer.usage.completion_tokens <= 12


def test_tools_that_are_turned_off_change_nothing(client4):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
    request = {"model": MODEL.name, "messages": MESSAGES, "max_completion_tokens": 12, **GREEDY}
    plain = client4.chat.completions.create(**request)
    off = client4.chat.completions.create(**request, tools=tools, tool_choice="none")
    assert off.choices[0].message.content == plain.choices[0].message.content
    assert off.usage.prompt_tokens == plain.usage.prompt_tokens
    with pytest.raises(openai.BadRequestError, match="tools: not supported"):
        client4.chat.completions.create(**request, tools=tools)


def test_max_tokens_is_exact(client4):
    for count in (1, 2, 17):
        answer = client4.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=count, **GREEDY,
                                            extra_body={"ignore_eos": True})
        assert answer.usage.completion_tokens == count
        assert answer.choices[0].finish_reason == "length"


def test_default_max_tokens_of_completions_is_16(client4):
    answer = client4.completions.create(model=MODEL.name, prompt=PROMPT, extra_body={"ignore_eos": True}, **GREEDY)
    assert answer.usage.completion_tokens == 16


def test_prompt_forms_agree(client4, pp4):
    ids = pp4.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    forms = [PROMPT, [PROMPT], ids, [ids]]
    answers = [client4.completions.create(model=MODEL.name, prompt=form, max_tokens=8, **GREEDY) for form in forms]
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert {answer.usage.prompt_tokens for answer in answers} == {len(ids)}


def test_several_prompts(client4):
    answer = client4.completions.create(model=MODEL.name, prompt=PROMPTS[:3], max_tokens=8, **GREEDY)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for prompt, choice in zip(PROMPTS, answer.choices):
        alone = client4.completions.create(model=MODEL.name, prompt=prompt, max_tokens=8, **GREEDY)
        assert choice.text == alone.choices[0].text


def test_n_gives_different_choices_that_the_seed_repeats(client4):
    def ask():
        answer = client4.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=16, n=3, **SEEDED)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.text for choice in answer.choices]

    first = ask()
    assert len(set(first)) > 1
    assert ask() == first


def test_a_top_p_of_0_is_greedy(client4):
    request = {"model": MODEL.name, "prompt": PROMPT, "max_tokens": 16}
    wild = client4.completions.create(**request, temperature=2, top_p=0)
    assert wild.choices[0].text == client4.completions.create(**request, **GREEDY).choices[0].text


@pytest.mark.parametrize("extra", [{}, {"seed": -1}], ids=["no seed", "seed -1"])
def test_without_a_seed_equal_prompts_get_answers_of_their_own(client4, extra):
    answer = client4.completions.create(model=MODEL.name, prompt=[PROMPT] * 4, max_tokens=32, temperature=1, **extra)
    assert len({choice.text for choice in answer.choices}) > 2


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_text_before_it(client4, stream):
    whole = client4.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=48, **GREEDY).choices[0].text
    stop = whole[len(whole) // 2:][:4]
    wanted = whole[:whole.index(stop)]
    answer = client4.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=48, stop=[stop, "\x00never"],
                                        stream=stream, **GREEDY)
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        assert "".join(chunk.text for chunk in chunks) == wanted
        assert chunks[-1].finish_reason == "stop"
    else:
        assert answer.choices[0].text == wanted
        assert answer.choices[0].finish_reason == "stop"


def test_completion_logprobs(client4):
    answer = client4.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=6, logprobs=3, **GREEDY)
    choice = answer.choices[0]
    logprobs = choice.logprobs
    count = answer.usage.completion_tokens
    if not any(token.startswith("bytes:") for token in logprobs.tokens):  # part of a character
        assert "".join(logprobs.tokens) == choice.text
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == count
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert logprob <= 0
        assert 1 <= len(top) <= 4
        assert top[token] == pytest.approx(logprob, abs=1e-6)
        assert max(top.values()) == pytest.approx(logprob, abs=1e-6), "greedy takes the most probable token"


def test_chat_logprobs(client4):
    answer = client4.chat.completions.create(model=MODEL.name, messages=MESSAGES, max_tokens=6, logprobs=True,
                                             top_logprobs=2, **GREEDY)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 2
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob, abs=1e-6)
        if not token.token.startswith("bytes:"):
            assert bytes(token.bytes).decode() == token.token


def test_as_many_alternatives_as_the_server_allows():
    with MillraceServer("--max-logprobs", 60, "--pp-size", 2) as server, client_of(server) as client:
        request = {"model": MODEL.name, "messages": MESSAGES, "max_tokens": 2, "logprobs": True, **GREEDY}
        answer = client.chat.completions.create(**request, extra_body={"top_logprobs": 60})
        assert [len(token.top_logprobs) for token in answer.choices[0].logprobs.content] == [60, 60]
        with pytest.raises(openai.BadRequestError, match="at most 60 .--max-logprobs"):
            client.chat.completions.create(**request, extra_body={"top_logprobs": 61})


def test_logprobs_by_token_id(client4):
    answer = client4.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=4, logprobs=2, **GREEDY,
                                        extra_body={"return_tokens_as_token_ids": True, "return_token_ids": True})
    choice = answer.choices[0]
    assert choice.logprobs.tokens == [f"token_id:{token}" for token in choice.model_extra["token_ids"]]
    assert all(token in top for token, top in zip(choice.logprobs.tokens, choice.logprobs.top_logprobs))


def test_echo(client4):
    answer = client4.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=4, echo=True, **GREEDY)
    plain = client4.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=4, **GREEDY)
    assert answer.choices[0].text == PROMPT + plain.choices[0].text


def test_logit_bias_forces_a_token(client4, pp4):
    token = pp4.post("/tokenize", {"prompt": " whale", "add_special_tokens": False}).json()["tokens"][0]
    answer = client4.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=3, logit_bias={str(token): 100},
                                        extra_body={"return_token_ids": True}, **GREEDY)
    assert answer.choices[0].model_extra["token_ids"] == [token] * 3


def test_tokenize_and_detokenize_are_inverse(server):
    for text in (PROMPT, "naïve — “quoted” 鯨 🐋\n\ttab", "a" * 1000, ""):
        tokens = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()
        assert tokens["count"] == len(tokens["tokens"])
        back = server.post("/detokenize", {"tokens": tokens["tokens"]})
        assert back.status_code == 200, back.text
        assert back.json()["prompt"] == text


def test_health_endpoints(server):
    assert server.get("/health").status_code == 200
    assert server.get("/version").json()["version"]
    assert server.get("/load").json().keys() >= {"running", "waiting"}
    info = server.get("/server_info").json()
    assert info["model"]["vocab_size"] > 0
    metrics = server.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "# TYPE vllm:time_to_first_token_seconds histogram" in metrics.text


def test_a_repeated_prompt_gives_the_same_answer(client4):
    """The prefix cache never changes tokens."""
    prompt = " ".join(PROMPTS * 4)
    answers = [client4.completions.create(model=MODEL.name, prompt=prompt, max_tokens=16, **SEEDED) for _ in range(3)]
    assert len({answer.choices[0].text for answer in answers}) == 1
