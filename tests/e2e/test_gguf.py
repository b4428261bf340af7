"""Tests GGUF files: the bits of the same model in safetensors, split files, several nodes, what is refused."""

import json
import shutil

import pytest
from conftest import client_of
from gguf_writer import write_gguf
from millrace_ring import Ring
from millrace_server import MODEL, MillraceServer, run_binary
from prompts import PROMPTS

REQUEST = {"max_tokens": 16, "temperature": 0, "logprobs": 3, "extra_body": {"ignore_eos": True}}


def answers(server):
    """Returns texts and logprobs, which are equal if every bit of every logit is."""
    with client_of(server) as client:
        model = client.models.list().data[0].id
        choices = [client.completions.create(model=model, prompt=prompt, **REQUEST).choices[0] for prompt in PROMPTS[:4]]
    return [(choice.text, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs) for choice in choices]


@pytest.fixture(scope="module")
def wanted(pp1):
    return answers(pp1)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    return write_gguf(MODEL, tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return write_gguf(MODEL, tmp_path_factory.mktemp("split"), parts=3)


def model_name(server):
    return server.get("/v1/models").json()["data"][0]["id"]


@pytest.mark.parametrize("flags", [(), ("--pp-size", 2), ("--tp-size", 2)])
def test_a_file_gives_the_bits_of_safetensors(wanted, single, flags):
    with MillraceServer(*flags, model=single) as server:
        assert model_name(server) == "books"
        assert answers(server) == wanted


def test_split_files_are_one_model(wanted, split):
    with MillraceServer("--pp-size", 2, model=split.with_name("books-00002-of-00003.gguf")) as server:
        assert model_name(server) == "books"
        assert answers(server) == wanted


def test_a_folder_of_one_model_is_enough(wanted, split):
    with MillraceServer(model=split.parent) as server:
        assert answers(server) == wanted


def test_two_nodes_serve_a_file(wanted, split):
    with Ring(2, 2, model=split) as ring:
        assert answers(ring.server) == wanted


def test_texts_are_those_of_the_tokenizer(pp1, single):
    texts = ["Hello, world! 123 456", "  na\u00efve \u6587\u5b57\n\n<|endoftext|> it's", ""]
    with MillraceServer(model=single) as server:
        for text in texts:
            body = {"content": text, "add_special": True}
            assert server.post("/tokenize", body).json() == pp1.post("/tokenize", body).json()


def test_files_beside_it_go_before_the_metadata(single, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(MODEL / name, tmp_path)
    shutil.copy(single, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 256}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    with MillraceServer(model=tmp_path / single.name) as server:
        assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 256
        prompt = server.post("/apply-template", {"messages": [{"role": "user", "content": "hi"}]}).json()["prompt"]
        assert prompt == "hi!"


def refusal(*flags, model):
    result = run_binary("serve", "--model-path", model, "--port", 0, *flags)
    assert result.returncode == 1
    return result.stderr


def test_what_cannot_be_served_is_named(single, split, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(single.read_bytes()[:-1000])
    message = refusal(model=cut)
    assert "cut.gguf: tensor '" in message and "(truncated?)" in message
    lone = tmp_path / "lone" / split.name
    lone.parent.mkdir()
    shutil.copy(split, lone)
    assert "books-00002-of-00003.gguf" in refusal(model=lone)
    two = tmp_path / "two"
    two.mkdir()
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(single, two / name)
    assert "a.gguf, b.gguf" in refusal(model=two)
    assert "no such folder or GGUF file" in refusal(model=tmp_path / "absent.gguf")
    other = json.loads((MODEL / "tokenizer.json").read_text())
    vocab = other["model"]["vocab"]
    first, second = list(vocab)[300:302]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (two / "tokenizer.json").write_text(json.dumps(other))
    assert "tokenizer of the same model" in refusal(model=two / "a.gguf")
