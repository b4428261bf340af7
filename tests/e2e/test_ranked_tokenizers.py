"""Tests model folders whose tokenizer is a tekken.json or a tiktoken.model."""

import base64
import json
import shutil

import pytest
from millrace_server import MODEL, MillraceServer, run_binary
from prompts import PROMPT

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def byte_alphabet():
    """Returns the byte for each character of the byte-level alphabet."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + i): byte for i, byte in enumerate(others)}}


@pytest.fixture(scope="module")
def tokens():
    """Returns the bytes of the model's tokens by rank; the only special token, of id 0, is not among them."""
    alphabet = byte_alphabet()
    vocab = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    spellings = sorted(vocab, key=vocab.get)[1:]
    return [bytes(alphabet[each] for each in spelling) for spelling in spellings]


@pytest.fixture
def folder(tmp_path):
    """Returns a copy of the model without its tokenizer."""
    copy = tmp_path / MODEL.name
    shutil.copytree(MODEL, copy)
    (copy / "tokenizer.json").unlink()
    return copy


def write_tekken(folder, tokens, version="v13"):
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
             for rank, token in enumerate(tokens)]
    config = {"pattern": GPT2_PATTERN, "num_vocab_tokens": len(tokens), "default_vocab_size": len(tokens) + 1,
              "default_num_special_tokens": 1, "version": version}
    special = [{"rank": 0, "token_str": "<|endoftext|>", "is_control": True}]
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))


def test_a_tekken_file_gives_the_answers_of_tokenizer_json(pp1, folder, tokens):
    write_tekken(folder, tokens)
    bodies = [{"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 2},
              {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "structured_outputs": {"regex": "[a-z ]{5,9}é?!"}}]
    with MillraceServer("--pp-size", 2, model=folder) as server:
        for text in ("Hello, world! 123 456", "  naïve 文字\n\n<|endoftext|> it's", ""):
            body = {"content": text, "add_special": True}
            assert server.post("/tokenize", body).json() == pp1.post("/tokenize", body).json()
        for body in bodies:
            found, wanted = (each.post("/v1/completions", body).json()["choices"] for each in (server, pp1))
            assert found == wanted


def test_a_tekken_file_brings_the_template_of_its_version(folder, tokens):
    write_tekken(folder, tokens)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|endoftext|>"}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    with MillraceServer(model=folder) as server:
        prompt = server.post("/apply-template", {"messages": messages}).json()["prompt"]
        assert prompt == "<|endoftext|>[INST]hi[/INST]a<|endoftext|>[INST]b[/INST]"
        chat = {"messages": messages, "max_tokens": 2}
        assert server.post("/v1/chat/completions", chat).status_code == 200
    write_tekken(folder, tokens, "v99")
    with MillraceServer(model=folder) as server:
        refused = server.post("/v1/chat/completions", {"messages": messages})
        assert refused.status_code == 400 and "chat template" in refused.json()["error"]["message"]


def test_a_damaged_file_is_named(folder, tokens):
    lines = [base64.b64encode(token).decode() + f" {rank}\n" for rank, token in enumerate(tokens)]
    lines[299] = "not a token\n"
    (folder / "tiktoken.model").write_text("".join(lines))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TikTokenTokenizer"}')
    result = run_binary("serve", "--model-path", folder, "--port", 0)
    assert result.returncode == 1 and "tiktoken.model: line 300 is \"not a token\"" in result.stderr, result.stderr
