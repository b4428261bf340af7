"""Requests to a ring: long streams, and the comparison of its outputs with those of one stage."""

from prompts import PROMPT
from streams import Stream

LONG = {"prompt": PROMPT, "max_tokens": 900, "temperature": 0.9, "seed": 5, "ignore_eos": True}
GREEDY = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0}
SEEDED = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0.9, "top_p": 0.9, "seed": 11, "logprobs": 3}


def long_stream(ring, **fields):
    """Returns a stream of 900 tokens, or as `fields` say."""
    return Stream(ring.server, **{**LONG, **fields})


def completion(server, body):
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def same_answers(ring, pp1):
    for body in (GREEDY, SEEDED):
        ours, theirs = completion(ring.server, body), completion(pp1, body)
        assert ours["text"] == theirs["text"]
        assert ours["logprobs"] == theirs["logprobs"]
