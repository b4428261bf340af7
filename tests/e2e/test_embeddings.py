"""Tests vectors and scores, over models whose outputs sentence-transformers has computed (tests/golden/pooling)."""

import base64
import json
import math
import random
import struct
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from conftest import client_of
from millrace_server import ROOT, MillraceServer
from test_openapi import CHECKS, run_schemathesis

MODELS = ROOT / "tests" / "golden" / "pooling"
FLAGS = ("--dtype", "f32", "--max-total-tokens", 16384)
TOLERANCE = 1e-5


def golden_of(name):
    return json.loads((MODELS / name / "golden.json").read_text())


@pytest.fixture(scope="module", params=[1, 4])
def embedder(request):
    """Returns a server of one stage or four, whose prompts are cut into short chunks."""
    with MillraceServer("--pp-size", request.param, "--chunked-prefill-size", 24, *FLAGS, model=MODELS / "embed-last") as server:
        yield server


def vectors_of(response):
    assert [each.index for each in response.data] == list(range(len(response.data)))
    return [each.embedding for each in response.data]


def assert_close(found, wanted):
    assert len(found) == len(wanted)
    assert max(abs(a - b) for a, b in zip(found, wanted)) < TOLERANCE


def test_openai_gets_the_vectors_of_sentence_transformers(embedder):
    golden = golden_of("embed-last")["texts"]
    with client_of(embedder) as client:
        # The package asks for base64 by itself.
        by_text = client.embeddings.create(model="embed-last", input=[each["text"] for each in golden])
        by_ids = client.embeddings.create(model="embed-last", input=[each["ids"] for each in golden], encoding_format="float")
    for found, wanted in zip(vectors_of(by_text), golden):
        assert_close(found, wanted["vector"])
    for found, wanted in zip(vectors_of(by_ids), golden):
        assert_close(found, wanted["vector"])
    assert by_text.usage.prompt_tokens == sum(len(each["ids"]) for each in golden)


@pytest.mark.parametrize("pp_size", [1, 4])
def test_an_encoder_gives_the_vectors_of_sentence_transformers(pp_size):
    golden = golden_of("embed-bert")["texts"]
    texts = [each["text"] for each in golden]
    flags = ("--pp-size", pp_size, "--chunked-prefill-size", 24, *FLAGS)
    with MillraceServer(*flags, model=MODELS / "embed-bert") as server, client_of(server, max_retries=0) as client:
        together = vectors_of(client.embeddings.create(model="embed-bert", input=texts * 30))
        for index, vector in enumerate(together):
            assert_close(vector, golden[index % len(golden)]["vector"])
        assert together[:len(texts)] == together[-len(texts):]  # bit for bit
        with pytest.raises(openai.BadRequestError, match="258"):
            client.embeddings.create(model="embed-bert", input="a" * 300)
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="embed-bert", prompt="a")


def test_512_inputs_equal_single_ones(embedder):
    dice = random.Random(1)
    texts = ["".join(dice.choices("the old sailor ", k=dice.randint(1, 90))) for _ in range(512)]
    with client_of(embedder) as client:
        together = vectors_of(client.embeddings.create(model="embed-last", input=texts))
        assert len(together) == 512
        for index in dice.sample(range(512), 12):
            alone = vectors_of(client.embeddings.create(model="embed-last", input=texts[index]))
            assert alone[0] == together[index]  # bit for bit
        assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-5) for vector in together)


def test_many_clients_with_batches_get_equal_vectors(embedder):
    texts = [f"text {number} of a batch that several clients send" for number in range(64)]
    with client_of(embedder) as client:
        wanted = vectors_of(client.embeddings.create(model="embed-last", input=texts))
        with ThreadPoolExecutor(6) as pool:
            sent = [pool.submit(client.embeddings.create, model="embed-last", input=texts) for _ in range(12)]
            assert all(vectors_of(each.result()) == wanted for each in sent)
    assert embedder.metric("millrace:prefix_cache_hits_total") > 0
    assert embedder.metric("millrace:num_requests_running") == 0


def test_base64_is_f32_little_endian(embedder):
    floats = embedder.post("/v1/embeddings", {"input": "a", "encoding_format": "float"}).json()["data"][0]["embedding"]
    text = embedder.post("/v1/embeddings", {"input": "a", "encoding_format": "base64"}).json()["data"][0]["embedding"]
    raw = base64.b64decode(text)
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(floats, rel=1e-7)


def test_embedding_errors_name_their_field(embedder):
    for body, param in (
        ({"input": []}, "input"),
        ({"input": [[1], [100000]]}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
    ):
        reply = embedder.post("/v1/embeddings", body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert embedder.post("/v1/completions", {"prompt": "a"}).status_code == 400
    assert "output head" in embedder.post("/v1/completions", {"prompt": "a"}).json()["error"]["message"]


@pytest.mark.parametrize("name", ["embed-mean", "embed-cls"])
def test_other_poolings_equal_sentence_transformers(name):
    golden = golden_of(name)["texts"]
    with MillraceServer("--pp-size", 2, "--chunked-prefill-size", 16, *FLAGS, model=MODELS / name) as server:
        reply = server.post("/v1/embeddings", {"input": [each["text"] for each in golden]}).json()
        for found, wanted in zip(reply["data"], golden):
            assert_close(found["embedding"], wanted["vector"])
        cut = server.post("/v1/embeddings", {"input": golden[1]["text"], "dimensions": 16})
        if name == "embed-mean":
            assert cut.status_code == 400
        else:
            assert_close(cut.json()["data"][0]["embedding"], golden[1]["vector"][:16])
            assert server.post("/v1/embeddings", {"input": "a", "dimensions": 17}).status_code == 400


@pytest.mark.parametrize("name", ["score-head", "score-bert", "score-xlm-roberta", "score-tokens"])
def test_scores_equal_the_reference(name):
    golden = golden_of(name)
    with MillraceServer("--pp-size", 2, "--chunked-prefill-size", 64, *FLAGS, model=MODELS / name) as server:
        # As Open WebUI asks.
        body = {"model": name, "query": golden["query"], "documents": golden["documents"], "top_n": len(golden["documents"])}
        results = server.post("/v1/rerank", body).json()["results"]
        scores = [each["relevance_score"] for each in results]
        assert scores == sorted(scores, reverse=True)
        found = [each["relevance_score"] for each in sorted(results, key=lambda each: each["index"])]
        assert_close(found, golden["scores"])
        pairs = server.post("/score", {"text_1": golden["query"], "text_2": golden["documents"]}).json()
        assert_close([each["score"] for each in pairs["data"]], golden["scores"])


def test_a_generating_server_embeds_when_asked():
    with MillraceServer("--runner", "generate", "--convert", "embed", "--pooling-type", "mean") as server:
        vector = server.post("/v1/embeddings", {"input": "The old sailor"}).json()["data"][0]["embedding"]
        assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-4)
        assert server.post("/v1/completions", {"prompt": "The old", "max_tokens": 4}).status_code == 200


def test_langchain_embeds(embedder):
    langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    golden = golden_of("embed-last")["texts"]
    model = langchain_openai.OpenAIEmbeddings(model="embed-last", base_url=embedder.url + "/v1", api_key="none",
                                              check_embedding_ctx_length=False)
    for found, wanted in zip(model.embed_documents([each["text"] for each in golden]), golden):
        assert_close(found, wanted["vector"])


def test_routes_of_vectors_do_what_their_document_says(tmp_path):
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    with MillraceServer(*FLAGS, "--max-body-mib", 1, model=MODELS / "embed-last") as server:
        paths = [part for path in ("/v1/embeddings", "/rerank", "/score") for part in ("--include-path", path)]
        run_schemathesis(server, tmp_path, CHECKS, *paths, "--phases", "coverage,fuzzing")
        assert "a request failed" not in server.log()
