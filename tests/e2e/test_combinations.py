"""Combines request fields at random from a fixed seed. A stream equals the whole response, one stage equals four, and
both follow the fields. MILLRACE_COMBINATIONS sets how many combinations are drawn."""

import json
import os
import random

import pytest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
COUNT = int(os.environ.get("MILLRACE_COMBINATIONS", "25"))
TEXTS = ["It is a truth universally acknowledged", "“Whale!” he cried — “", "naïve 鯨 🐋", "\n\n", "Call me Ishmael. " * 12]
STOPS = [" the", ["e"], ["\n", ","], ["”", "—", ". "], ["\ufffd", "🐋"], ["never in it", "he", "her"]]


def draw_fields(dice, vocab_size):
    fields = {"seed": dice.randrange(1 << 40), "temperature": dice.choice([0, 0.7, 1.3, 2]), "n": dice.choice([1, 1, 2, 3]),
              "max_tokens": dice.randrange(1, 40), "return_token_ids": True}

    def maybe(share, **more):
        if dice.random() < share:
            fields.update(more)

    maybe(0.5, stop=dice.choice(STOPS))
    maybe(0.3, min_tokens=dice.randrange(fields["max_tokens"] + 1))
    maybe(0.3, stop_token_ids=dice.sample(range(vocab_size), vocab_size // 20))
    maybe(0.3, logit_bias={str(dice.randrange(vocab_size)): dice.choice([-100, 3, 100]) for _ in range(3)})
    maybe(0.2, truncate_prompt_tokens=dice.randrange(1, 12))
    maybe(0.3, top_p=dice.choice([0.1, 0.9]), top_k=dice.choice([-1, 1, 20]), min_p=dice.choice([0, 0.2]))
    maybe(0.2, repetition_penalty=1.3, presence_penalty=-1, frequency_penalty=2)
    for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "add_special_tokens"):
        maybe(0.3, **{name: dice.random() < 0.5})
    return fields


def draw_body(dice, path, vocab_size):
    fields = draw_fields(dice, vocab_size)
    if path == CHAT:
        roles = ["user"] + ["assistant", "user"] * dice.randrange(3)
        fields["messages"] = [{"role": role, "content": dice.choice(TEXTS)} for role in roles]
        if dice.random() < 0.5:
            fields.update(logprobs=True, top_logprobs=dice.randrange(4))
        return fields
    ids = [dice.randrange(vocab_size) for _ in range(dice.randrange(1, 30))]
    fields["prompt"] = dice.choice([dice.choice(TEXTS), dice.sample(TEXTS, 2), ids, [ids, ids[:3]]])
    if dice.random() < 0.5:
        fields["logprobs"] = dice.randrange(4)
    if dice.random() < 0.3:
        fields["echo"] = True
        if dice.random() < 0.2:
            fields["max_tokens"] = 0
            fields.pop("min_tokens", None)
    return fields


def joined(parts):
    """Joins the log probabilities of several chunks by concatenating their lists."""
    parts = [part for part in parts if part]
    if not parts:
        return None
    return {name: sum((part[name] for part in parts), []) if isinstance(value, list) else value
            for name, value in parts[0].items()}


def from_full_response(answer):
    choices = []
    for choice in answer["choices"]:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        prompt = choice.get("prompt_token_ids", answer.get("prompt_token_ids"))
        choices.append({"text": text, "logprobs": choice["logprobs"], "ids": choice["token_ids"], "prompt": prompt,
                        "finish": choice["finish_reason"], "stop": choice["stop_reason"]})
    return choices, answer["usage"]


def from_stream(text):
    *events, end = [event[6:] for event in text.split("\n\n") if event.startswith("data: ")]
    assert end == "[DONE]"
    chunks = [json.loads(event) for event in events]
    of_chat = next((chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk), None)
    parts = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        parts.setdefault(choice["index"], []).append(choice)
    choices = []
    for _, own in sorted(parts.items()):
        pieces = [part["delta"].get("content", "") if "delta" in part else part["text"] for part in own]
        choices.append({"text": "".join(pieces), "logprobs": joined([part["logprobs"] for part in own]),
                        "ids": sum((part.get("token_ids", []) for part in own), []),
                        "prompt": next((part["prompt_token_ids"] for part in own if "prompt_token_ids" in part), of_chat),
                        "finish": own[-1]["finish_reason"], "stop": own[-1]["stop_reason"]})
    return choices, chunks[-1]["usage"]


def answers(server, path, body):
    whole = server.post(path, body)
    assert whole.status_code == 200, whole.text
    stream = server.post(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert stream.status_code == 200, stream.text
    return from_full_response(whole.json()), from_stream(stream.text)


def check_choice(choice, body, detokenize):
    ids, asked = choice["ids"], body["max_tokens"]
    assert body.get("min_tokens", 0) <= len(ids) <= asked
    assert (choice["finish"] == "length") <= (len(ids) == asked)
    assert len(choice["prompt"]) <= body.get("truncate_prompt_tokens", 1 << 30)
    stops = body.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    if choice["stop"] is not None:
        assert choice["finish"] == "stop"
        assert choice["stop"] in (stops if isinstance(choice["stop"], str) else ids[-1:])
    text = choice["text"]
    if body.get("echo"):
        text = text[len(detokenize(choice["prompt"])):]
    if not body.get("include_stop_str_in_output") and not body.get("min_tokens"):
        assert not any(stop in text for stop in stops)
    logprobs = choice["logprobs"]
    if logprobs is None:
        return
    assert len(logprobs["content"] if "content" in logprobs else logprobs["tokens"]) == len(ids) + (
        len(choice["prompt"]) if body.get("echo") else 0)
    if "tokens" in logprobs:
        check_offsets(choice["text"], logprobs)


def check_offsets(text, logprobs):
    """Checks that each token's text is at its offset and that offsets never decrease."""
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets)
    for token, begin, end in zip(logprobs["tokens"], offsets, offsets[1:]):
        if end <= len(text) and end - begin == len(token):
            assert text[begin:end] == token


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_streams_and_stages_agree_on_random_fields(pp1, pp4, path):
    vocab_size = pp1.get("/server_info").json()["model"]["vocab_size"]
    finishes = set()
    for number in range(COUNT):
        body = draw_body(random.Random(f"{path} {number}"), path, vocab_size)

        def detokenize(ids, skip=body.get("skip_special_tokens", True)):
            return pp1.post("/detokenize", {"tokens": ids, "skip_special_tokens": skip}).json()["prompt"]

        (whole, usage), (streamed, streamed_usage) = answers(pp4, path, body)
        assert streamed == whole, (number, body)
        assert answers(pp1, path, body)[1][0] == whole, (number, body)
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [usage[name] for name in names] == [streamed_usage[name] for name in names]
        assert usage["completion_tokens"] == sum(len(choice["ids"]) for choice in whole)
        for choice in whole:
            check_choice(choice, body, detokenize)
            finishes.add((choice["finish"], type(choice["stop"])))
    assert {("length", type(None)), ("stop", str), ("stop", int)} <= finishes
