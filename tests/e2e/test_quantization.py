"""Tests 8-bit weights: the flag, the command that writes such a model, and refusals."""

import json

import pytest
from conftest import client_of
from millrace_ring import Ring
from millrace_server import MODEL, MillraceServer, run_binary
from prompts import PROMPTS
from test_cache import PROMPTS as CHAPTERS
from test_cache import ask, wait_for_persisted
from test_lifecycle import check_refusal

REQUEST = {"max_tokens": 24, "temperature": 0, "logprobs": 3, "extra_body": {"ignore_eos": True}}


def answers(server):
    """Returns texts and logprobs, which are equal if every bit of every logit is."""
    with client_of(server) as client:
        model = client.models.list().data[0].id
        choices = [client.completions.create(model=model, prompt=prompt, **REQUEST).choices[0] for prompt in PROMPTS[:4]]
    return [(choice.text, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs) for choice in choices]


def compute_of_nodes(server):
    return [node["compute"] for node in server.get("/server_info").json()["nodes"]]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized") / "books-4m-w8"
    result = run_binary("quantize", "--model-path", MODEL, "--output", folder)
    assert result.returncode == 0, result.stderr
    assert f"{folder}: " in result.stdout and "tensors in 8 bits" in result.stdout
    return folder


@pytest.fixture(scope="module")
def rounded():
    with MillraceServer("--quantization", "w8") as server:
        assert compute_of_nodes(server)[0].endswith(", w8")
        return answers(server)


def test_weights_of_8_bits_change_the_numbers(rounded, pp1):
    assert not compute_of_nodes(pp1)[0].endswith("w8")
    plain = answers(pp1)
    assert [logprobs for _, logprobs, _ in plain] != [logprobs for _, logprobs, _ in rounded]
    for (_, found, _), (_, wanted, _) in zip(rounded, plain):
        assert abs(found[0] - wanted[0]) < 0.2


@pytest.mark.parametrize("stages", [1, 4])
def test_a_written_model_equals_one_quantized_at_start(written, rounded, stages):
    config = json.loads((written / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "millrace-w8", "bits": 8, "group_size": 32, "sym": True}
    size = sum(path.stat().st_size for path in written.glob("*.safetensors"))
    assert size < 0.8 * sum(path.stat().st_size for path in MODEL.glob("*.safetensors"))
    with MillraceServer("--pp-size", stages, model=written) as server:
        assert compute_of_nodes(server)[0].endswith(", w8")
        assert answers(server) == rounded


def test_the_head_gives_all_nodes_weights_of_8_bits(rounded):
    with Ring(2, 4, "--quantization", "w8") as ring:
        assert [compute.endswith(", w8") for compute in compute_of_nodes(ring.server)] == [True, True]
        assert answers(ring.server) == rounded


def test_w8a8_is_equal_on_any_stages_and_from_a_written_model(written, rounded):
    with MillraceServer("--quantization", "w8a8") as server:
        assert compute_of_nodes(server)[0].endswith(", w8a8")
        wanted = answers(server)
    assert [logprobs for _, logprobs, _ in wanted] != [logprobs for _, logprobs, _ in rounded]
    for (_, found, _), (_, near, _) in zip(wanted, rounded):
        assert abs(found[0] - near[0]) < 0.2
    with MillraceServer("--quantization", "w8a8", "--pp-size", 4, model=written) as server:
        assert answers(server) == wanted


def test_scales_that_are_powers_of_two(tmp_path, rounded, written):
    folder = tmp_path / "books-4m-mxint8"
    result = run_binary("quantize", "--model-path", MODEL, "--output", folder, "--quantization", "mxint8")
    assert result.returncode == 0, result.stderr
    with MillraceServer("--quantization", "mxint8", "--pp-size", 2) as server:
        assert [compute.endswith(", mxint8") for compute in compute_of_nodes(server)] == [True]
        wanted = answers(server)
    assert [logprobs for _, logprobs, _ in wanted] != [logprobs for _, logprobs, _ in rounded]
    for (_, found, _), (_, near, _) in zip(wanted, rounded):
        assert abs(found[0] - near[0]) < 0.2
    with MillraceServer(model=folder) as server:
        assert answers(server) == wanted
    check_refusal(run_binary("serve", "--model-path", written, "--quantization", "mxint8"),
                  "--quantization mxint8: the model is stored as w8")


def test_one_scale_per_channel_in_the_form_of_compressed_tensors(tmp_path, rounded, written):
    folder = tmp_path / "books-4m-int8"
    result = run_binary("quantize", "--model-path", MODEL, "--output", folder, "--quantization", "w8a8_int8")
    assert result.returncode == 0, result.stderr
    stored = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (stored["quant_method"], stored["format"], stored["ignore"]) == ("compressed-tensors", "int-quantized", ["lm_head"])
    assert stored["config_groups"]["group_0"]["weights"]["strategy"] == "channel"
    with MillraceServer("--quantization", "w8a8_int8", "--pp-size", 2) as server:
        assert [compute.endswith(", w8a8_int8") for compute in compute_of_nodes(server)] == [True]
        wanted = answers(server)
    assert [logprobs for _, logprobs, _ in wanted] != [logprobs for _, logprobs, _ in rounded]
    for (_, found, _), (_, near, _) in zip(wanted, rounded):
        assert abs(found[0] - near[0]) < 0.3
    with MillraceServer("--cpu-isa", "avx2", "--quantization", "w8a8_int8") as server:
        for (_, found, _), (_, near, _) in zip(answers(server), wanted):
            assert abs(found[0] - near[0]) < 0.1
    with MillraceServer("--quantization", "w8a8_int8", model=folder) as server:
        assert answers(server) == wanted
    with MillraceServer(model=folder) as server:  # the head keeps its stored dtype
        for (_, found, _), (_, near, _) in zip(answers(server), wanted):
            assert found != near and abs(found[0] - near[0]) < 0.1
    check_refusal(run_binary("serve", "--model-path", written, "--quantization", "w8a8_int8"),
                  "--quantization w8a8_int8: the model is stored as w8")
    stored["config_groups"]["group_0"]["weights"]["type"] = "float"
    config = {**json.loads((folder / "config.json").read_text()), "quantization_config": stored}
    (folder / "config.json").write_text(json.dumps(config))
    check_refusal(run_binary("serve", "--model-path", folder, "--port", 0), "config_groups has no weights of type 'int' with 'int-quantized'")


def test_pages_of_one_model_are_not_taken_for_the_other(tmp_path, written):
    """Models share a store and prompts, and each finds only its own pages."""
    store = ("--page-size", "16", "--enable-hierarchical-cache", "--hicache-storage-backend", "file",
             "--hicache-storage-path", tmp_path, "--hicache-storage-prefetch-policy", "wait_complete",
             "--served-model-name", "books-4m")
    for model, flags in ((MODEL, ()), (MODEL, ("--quantization", "w8")), (written, ()),
                         (written, ("--quantization", "w8a8"))):
        with MillraceServer(*store, *flags, model=model) as server:
            assert [ask(server, prompt)[1] for prompt in CHAPTERS] == [0] * len(CHAPTERS)
            wait_for_persisted(server)
            assert server.post("/flush_cache").status_code == 200
            assert all(ask(server, prompt)[1] > 0 for prompt in CHAPTERS)


def test_what_cannot_be_done_is_refused(tmp_path, written):
    check_refusal(run_binary("quantize", "--model-path", MODEL, "--output", written), written, "is not empty")
    check_refusal(run_binary("quantize", "--model-path", written, "--output", tmp_path / "twice"), "has quantized weights already")
    check_refusal(run_binary("quantize", "--model-path", tmp_path / "nowhere", "--output", tmp_path / "out"), "nowhere")
    check_refusal(run_binary("serve", "--model-path", MODEL, "--quantization", "w3"), "--quantization")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in MODEL.iterdir():
        (foreign / path.name).symlink_to(path)
    config = json.loads((MODEL / "config.json").read_text())
    for method in ("bitsandbytes", "eetq", "hqq"):
        (foreign / "config.json").unlink()
        (foreign / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
        check_refusal(run_binary("serve", "--model-path", foreign, "--port", 0), f"'{method}'")
