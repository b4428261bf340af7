"""Tests model folders with contradicting, missing and superfluous files."""

import json
import shutil

import pytest
from millrace_server import MODEL, MillraceServer, run_binary
from prompts import PROMPT


@pytest.fixture
def folder(tmp_path):
    """Returns a copy of the model whose files a test may change."""
    copy = tmp_path / MODEL.name
    shutil.copytree(MODEL, copy)
    return copy


def change(path, **members):
    """Sets members of a JSON file. None removes one."""
    content = json.loads(path.read_text())
    content.update(members)
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def test_a_token_that_only_the_tokenizer_has_is_harmless(folder):
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    pad = dict(tokens[0], id=vocab_size, content="<pad>", special=True)
    change(folder / "tokenizer.json", added_tokens=[*tokens, pad])
    with MillraceServer("--pp-size", 2, model=folder) as server:
        refused = server.post("/v1/completions", {"prompt": "a <pad>", "max_tokens": 2})
        assert refused.status_code == 400
        assert "<pad>" in refused.json()["error"]["message"] and str(vocab_size) in refused.json()["error"]["message"]
        assert server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2}).status_code == 200
        assert server.metric("millrace:ring_epochs_total") == 1


def test_the_eos_token_of_the_tokenizer_ends_an_answer(folder):
    """Fine-tuned models often name the end of a turn in tokenizer_config.json only."""
    tokens = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    end, other = list(tokens)[300:302]
    change(folder / "tokenizer_config.json", eos_token=end)
    change(folder / "generation_config.json", eos_token_id=tokens[other])
    with MillraceServer(model=folder) as server:
        for token in (end, other):
            bias = {str(tokens[token]): 100}
            body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "logit_bias": bias}
            choice = server.post("/v1/completions", body).json()["choices"][0]
            assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("stop", None, "")
            choice = server.post("/v1/completions", {**body, "stop_token_ids": [tokens[token]]}).json()["choices"][0]
            assert choice["stop_reason"] == tokens[token]
            choice = server.post("/v1/completions", {**body, "ignore_eos": True}).json()["choices"][0]
            assert choice["finish_reason"] == "length"


def test_flags_override_the_model_folder(folder):
    change(folder / "generation_config.json", temperature=2, top_k=0)
    change(folder / "tokenizer_config.json", chat_template="{{ messages[0].content }}{{ mood }}")
    with MillraceServer("--override-generation-config", '{"temperature": 0}', "--default-chat-template-kwargs",
                        '{"mood": "!"}', model=folder) as server:
        bodies = [{"prompt": PROMPT, "max_tokens": 16, **more} for more in ({}, {"temperature": 0})]
        texts = [server.post("/v1/completions", body).json()["choices"][0]["text"] for body in bodies]
        assert texts[0] == texts[1]
        messages = [{"role": "user", "content": "hi"}]
        assert server.post("/apply-template", {"messages": messages}).json()["prompt"] == "hi!"
        own = {"messages": messages, "chat_template_kwargs": {"mood": "?"}}
        assert server.post("/apply-template", own).json()["prompt"] == "hi?"


def test_a_request_template_gets_default_special_tokens(folder):
    change(folder / "tokenizer_config.json", chat_template=None)
    messages = [{"role": "user", "content": "hi"}]
    with MillraceServer("--allow-request-chat-template", model=folder) as server:
        assert server.post("/apply-template", {"messages": messages}).status_code == 400
        own = server.post("/apply-template", {"messages": messages, "chat_template": "{{ bos_token }}{{ messages[0].content }}"})
        assert own.json()["prompt"] == "<|endoftext|>hi"


@pytest.mark.parametrize("members, message", [
    ({"final_logit_softcapping": 30}, "final_logit_softcapping 30 is not computed here"),
    ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "'spiral' is not one of"),
    ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel' is not known"),
    ({"architectures": ["Gemma2ForCausalLM"]}, "hidden_act 'silu' is not supported, wanted 'gelu_pytorch_tanh'"),
    ({"attention_bias": True}, "has no tensor 'model.layers.0.self_attn.q_proj.bias'"),
])
def test_a_config_that_wants_another_computation_is_refused(folder, members, message):
    change(folder / "config.json", **members)
    result = run_binary("serve", "--model-path", folder, "--port", 0)
    assert result.returncode == 1 and message in result.stderr, result.stderr
