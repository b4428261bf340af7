"""Tests a KV cache of 8 bits: equal text on every pipeline, from every tier and after a restart, and refusals."""

import pytest
from millrace_ring import Ring
from millrace_server import MODEL, MillraceServer, run_binary
from test_cache import PROMPTS, SMALL_POOL, ask, metric, texts, wait_for_persisted
from test_lifecycle import check_refusal
from test_quantization import answers, compute_of_nodes

DTYPES = ["int8", "fp8_e4m3"]


@pytest.fixture(scope="module", params=DTYPES)
def dtype(request):
    return request.param


@pytest.fixture(scope="module")
def coded(dtype):
    with MillraceServer("--kv-cache-dtype", dtype, "--page-size", "16") as server:
        assert compute_of_nodes(server)[0].endswith(f" kv {dtype}")
        assert f" tokens in {dtype}; " in server.log()
        yield answers(server), texts(server)


def test_codes_change_the_numbers_a_little(coded, pp1):
    plain = answers(pp1)
    found = coded[0]
    assert [logprobs for _, logprobs, _ in plain] != [logprobs for _, logprobs, _ in found]
    for (_, some, _), (_, wanted, _) in zip(found, plain):
        assert abs(some[0] - wanted[0]) < 0.3


def test_every_pipeline_gives_the_same_numbers(dtype, coded):
    with MillraceServer("--kv-cache-dtype", dtype, "--page-size", "5", "--pp-size", 4) as server:
        assert answers(server) == coded[0]
    with Ring(2, 2, "--kv-cache-dtype", dtype) as ring:
        assert [compute.endswith(f" kv {dtype}") for compute in compute_of_nodes(ring.server)] == [True, True]
        assert answers(ring.server) == coded[0]


def test_pages_come_back_from_the_host(dtype, coded):
    flags = ("--enable-hierarchical-cache", "--hicache-ratio", "4", "--kv-cache-dtype", dtype)
    with MillraceServer(*SMALL_POOL, *flags, "--pp-size", "2") as server:
        for _ in range(3):
            assert texts(server) == coded[1]
        assert metric(server, "kv_cache_host_hit_pages_total") > 0


@pytest.fixture(scope="module")
def store_flags(tmp_path_factory):
    """Returns the flags of a page store that the servers of all dtypes share."""
    return ("--page-size", "16", "--enable-hierarchical-cache", "--hicache-storage-backend", "file",
            "--hicache-storage-path", tmp_path_factory.mktemp("pages"), "--hicache-storage-prefetch-policy", "wait_complete")


def test_a_store_keeps_the_pages_of_each_dtype_apart(dtype, coded, store_flags):
    """The second dtype finds the pages of the first, and 16 bits those of both."""
    with MillraceServer(*store_flags, "--kv-cache-dtype", dtype) as server:
        assert [ask(server, prompt) for prompt in PROMPTS] == [(text, 0) for text in coded[1]]
        wait_for_persisted(server)
    with MillraceServer(*store_flags, "--kv-cache-dtype", dtype) as server:
        found = [ask(server, prompt) for prompt in PROMPTS]
        assert [text for text, _ in found] == coded[1]
        assert all(cached > 0 for _, cached in found)
    if dtype == DTYPES[-1]:
        with MillraceServer(*store_flags) as server:
            assert [ask(server, prompt)[1] for prompt in PROMPTS] == [0] * len(PROMPTS)


def test_refusals():
    check_refusal(run_binary("serve", "--model-path", MODEL, "--kv-cache-dtype", "fp8_e5m2"), "--kv-cache-dtype",
                  "fp8_e5m2")
