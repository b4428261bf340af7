"""Tests that neither the number of stages nor other requests change a token."""

import asyncio

import pytest
from conftest import async_client_of, client_of
from millrace_server import MODEL, MillraceServer
from prompts import PROMPTS, SAMPLINGS, ids_of, with_ids

PARALLEL = 32


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_one_stage_and_four_give_the_same_tokens(pp1, pp4, sampling):
    for prompt in PROMPTS[:8]:
        request = {"model": MODEL.name, "prompt": prompt, "max_tokens": 32, "logprobs": 1, **with_ids(sampling)}
        answers = [client_of(server).completions.create(**request).choices[0] for server in (pp1, pp4)]
        assert ids_of(answers[0]) == ids_of(answers[1]), prompt
        assert answers[0].text == answers[1].text
        assert answers[0].logprobs.token_logprobs == pytest.approx(answers[1].logprobs.token_logprobs, abs=1e-3)


def requests():
    samplings = list(SAMPLINGS.values())
    for index in range(PARALLEL):
        sampling = dict(samplings[index % len(samplings)])
        if "seed" in sampling:
            sampling["seed"] += index
        prompt = " ".join(PROMPTS[index % len(PROMPTS):][:1 + index % 5])
        yield {"model": MODEL.name, "prompt": prompt, "max_tokens": 16 + index, **with_ids(sampling)}


async def test_parallel_requests_equal_the_same_requests_alone(server):
    async with async_client_of(server) as client:
        alone = []
        for request in requests():
            answer = await client.completions.create(**request)
            alone.append(ids_of(answer.choices[0]))
        for _ in range(2):
            together = await asyncio.gather(*(client.completions.create(**request) for request in requests()))
            for index, (answer, wanted) in enumerate(zip(together, alone)):
                assert ids_of(answer.choices[0]) == wanted, f"request {index}"


async def test_a_long_prompt_among_short_ones_changes_nothing(pp1, pp4):
    """The long prompt is cut into chunks that share micro-batches with decode steps of short ones."""
    long = {"model": MODEL.name, "prompt": " ".join(PROMPTS * 5), "max_tokens": 16, **with_ids(SAMPLINGS["seeded"])}
    short = list(requests())[:6]
    found = []
    for server in (pp1, pp4):
        async with async_client_of(server) as client:
            answers = await asyncio.gather(*(client.completions.create(**request) for request in [*short, long]))
            found.append([ids_of(answer.choices[0]) for answer in answers])
    assert found[0] == found[1]


async def test_a_cache_that_is_too_small_for_all_changes_nothing(pp4):
    """Sequences are retracted and prefilled again, and their tokens stay equal."""
    wanted = [{**request, "max_tokens": 200} for request in requests()][:16]
    found = []
    with MillraceServer("--pp-size", 2, "--max-total-tokens", 1536, "--chunked-prefill-size", 32) as small:
        for server in (pp4, small):
            async with async_client_of(server) as client:
                answers = await asyncio.gather(*(client.completions.create(**request) for request in wanted))
                found.append([ids_of(answer.choices[0]) for answer in answers])
    assert found[0] == found[1]


def test_a_seed_of_the_server_repeats_what_no_request_seeds():
    def texts(seed):
        with MillraceServer("--random-seed", seed) as server, client_of(server) as client:
            asked = [client.completions.create(model=MODEL.name, prompt=PROMPTS[:2], max_tokens=16, temperature=1)
                     for _ in range(2)]
        return [choice.text for answer in asked for choice in answer.choices]

    first = texts(5)
    assert texts(5) == first
    assert texts(6) != first
