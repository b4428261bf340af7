"""Tiny random-weight checkpoints of each model family, and what transformers computes with them."""

import json
import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig, PreTrainedModel

VOCAB = 512
INIT_STD = 0.15
NORM_STD = 0.1
# How far the experts of a layer lie from what they have in common. Rounding to bf16 now and then turns the choice between
# two that are nearly tied; were they nothing alike, one such turn would hide everything else that bf16 does.
EXPERT_SPREAD = 0.05
GREEDY_STEPS = 32
MIN_MARGIN = 2e-3
PROMPT_LENGTHS = (1, 7, 33, 100, 190)
TOLERANCE = {"f32_max": 1e-4, "bf16_max": 0.3, "bf16_rms": 0.06, "bf16_kl": 5e-3}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "initializer_range": INIT_STD,
    "bos_token_id": 1,
    "use_cache": True,
}
# Of checkpoints that take little room.
SMALL = {
    **COMMON,
    "vocab_size": 128,
    "intermediate_size": 64,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_LLAMA = {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False}
_QWEN3_MOE = {
    **COMMON,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
    "tie_word_embeddings": False,
}
_LLAMA3_ROPE = {"factor": 4.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64}


@dataclass
class Family:
    """One checkpoint: its folder, its config.json as written, and how its weights are stored."""

    name: str
    seed: int
    config: dict
    eos: int | list[int]
    dtype: str = "bfloat16"
    shards: int = 1
    prompt_lengths: tuple[int, ...] = field(default=PROMPT_LENGTHS)
    tolerance: dict = field(default_factory=dict)  # in place of TOLERANCE's
    norm_mean: float = 1.0  # 0: the model multiplies by 1 + w
    query_norm: float = 1.0  # factor of the norms of q, where nothing else keeps scores small
    # Returns the weights to store; random_weights when absent.
    weights: Callable[["Family"], dict[str, Tensor]] | None = None
    f32_parts: tuple[str, ...] = ()
    # Returns what is stored of the weights, and what transformers reads in its place.
    split: Callable[[dict[str, Tensor]], tuple[dict[str, Tensor], dict[str, Tensor]]] | None = None
    # What transformers reads in place of `config`, where it lacks the family but has another one that computes the same.
    twin: dict | None = None

    @property
    def computed(self) -> dict:
        """The config of what transformers computes."""
        return {k: v for k, v in (self.twin or self.config).items() if k != "quantization_config"}

    @property
    def vocab_size(self) -> int:
        return self.config.get("text_config", self.config)["vocab_size"]


FAMILIES = [
    Family(
        "llama-tied",
        seed=101,
        config={
            **_LLAMA,
            "tie_word_embeddings": True,
            "rope_theta": 10000.0,
            "rope_scaling": {**_LLAMA3_ROPE, "rope_type": "llama3"},
            "torch_dtype": "bfloat16",
        },
        eos=[2, 3],
    ),
    Family(
        "llama-untied",
        seed=102,
        config={
            **_LLAMA,
            "num_hidden_layers": 8,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
            "dtype": "bfloat16",
        },
        eos=2,
    ),
    Family(
        "mistral",
        seed=103,
        config={
            **COMMON,
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": 16,
            "tie_word_embeddings": False,
            "rope_theta": 10000.0,
            "torch_dtype": "bfloat16",
        },
        eos=2,
    ),
    Family(
        "qwen2",
        seed=104,
        config={
            **COMMON,
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "use_sliding_window": False,
            "sliding_window": 16,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
            "rope_theta": 1000000.0,
            "torch_dtype": "bfloat16",
        },
        eos=[2, 5],
    ),
    Family(
        "qwen3",
        seed=105,
        config={
            **COMMON,
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "head_dim": 32,
            "attention_bias": False,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": 4,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "dtype": "bfloat16",
        },
        eos=[2, 5],
    ),
    Family(
        "llama-f16",
        seed=106,
        config={
            **_LLAMA,
            "tie_word_embeddings": True,
            "rope_theta": 10000.0,
            "rope_scaling": {**_LLAMA3_ROPE, "type": "llama3"},
            "torch_dtype": "float16",
        },
        eos=2,
        dtype="float16",
        prompt_lengths=(7, 100),
    ),
    Family(
        "llama-f32",
        seed=107,
        config={
            **_LLAMA,
            "tie_word_embeddings": False,
            "rope_parameters": {**_LLAMA3_ROPE, "rope_theta": 10000.0, "rope_type": "llama3"},
            "dtype": "float32",
        },
        eos=2,
        dtype="float32",
        prompt_lengths=(7, 100),
    ),
    Family(
        "llama-sharded",
        seed=108,
        config={
            **_LLAMA,
            "tie_word_embeddings": False,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "torch_dtype": "bfloat16",
        },
        eos=2,
        shards=3,
        prompt_lengths=(7, 100),
    ),
    Family(
        "qwen3moe",
        seed=109,
        config={
            **_QWEN3_MOE,
            "norm_topk_prob": True,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "dtype": "bfloat16",
        },
        eos=[2, 5],
    ),
    Family(
        "qwen3moe-raw",
        seed=110,
        config={
            **_QWEN3_MOE,
            "norm_topk_prob": False,
            "rope_theta": 1000000.0,
            "rope_scaling": None,
            "torch_dtype": "bfloat16",
        },
        eos=2,
        prompt_lengths=(7, 100),
    ),
    Family(
        "mixtral",
        seed=111,
        config={
            **COMMON,
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "intermediate_size": 72,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "rope_theta": 1000000.0,
            "torch_dtype": "bfloat16",
        },
        eos=2,
    ),
]


def significant(values, digits: int = 8) -> list:
    """Nested lists of floats, rounded to so many significant digits."""
    if isinstance(values, (list, tuple)):
        return [significant(v, digits) for v in values]
    return float(f"{values:.{digits}g}")


def generator_versions() -> dict:
    return {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def stored_shapes(config: PretrainedConfig, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint that a parameter is read from, which holds all of a layer's experts, if it is one of
    theirs."""
    mixtral = config.model_type == "mixtral"
    if mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if ".experts." not in name:
        return {name: shape}
    place, fused = name.rsplit(".", 1)
    parts = {"gate_up_proj": ("w1", "w3") if mixtral else ("gate_proj", "up_proj")}.get(
        fused, ("w2",) if mixtral else ("down_proj",)
    )
    experts, rows, columns = shape
    own = (rows // len(parts), columns)
    return {f"{place}.{e}.{part}.weight": own for e in range(experts) for part in parts}


def random_values(family: Family, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """f32 values of one tensor; the experts of a layer have a part in common, which follows from their layer's name."""
    noise = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
    if "norm" in name:
        return family.norm_mean + NORM_STD * noise
    if ".experts." in name:
        shared = re.sub(r"\.experts\.\d+\.", ".", name)
        common = np.random.default_rng([family.seed, *shared.encode()]).standard_normal(shape, dtype=np.float32)
        noise = (torch.from_numpy(common) + EXPERT_SPREAD * noise) / math.sqrt(1 + EXPERT_SPREAD**2)
    return INIT_STD * noise


def random_weights(family: Family) -> dict[str, Tensor]:
    """Random weights by their Hugging Face names, in the stored dtype; a tied lm_head is left out."""
    config = AutoConfig.for_model(**family.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    shapes: dict[str, tuple[int, ...]] = {}
    for name, p in model.named_parameters():
        if name not in tied:
            shapes |= stored_shapes(config, name, tuple(p.shape))
    rng = np.random.default_rng(family.seed)
    dtype = DTYPES[family.dtype]
    return {name: random_values(family, name, shape, rng).to(dtype) for name, shape in shapes.items()}


def save_weights(folder: Path, weights: dict[str, Tensor], shards: int) -> None:
    """model.safetensors, or `shards` files of about equal size, cut anywhere between tensors, with their index."""
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    total_bytes = sum(w.nbytes for w in weights.values())
    parts: list[dict[str, Tensor]] = [{} for _ in range(shards)]
    done_bytes = 0
    for name, w in weights.items():
        parts[min(shards - 1, done_bytes * shards // total_bytes)][name] = w
        done_bytes += w.nbytes
    weight_map = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def auto_class(config: dict) -> type:
    """What loads such a model: wrappers have a text model and others."""
    return AutoModelForImageTextToText if "text_config" in config else AutoModelForCausalLM


def load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The checkpoint as transformers reads it, with eager attention."""
    model, report = auto_class(json.loads((folder / "config.json").read_text())).from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    problems = {k: v for k, v in report.items() if v}
    assert not problems, f"{folder}: {problems}"
    return model.eval()


@torch.no_grad()
def logits_of(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """f32 logits [len(ids), vocab], computed without a cache."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy(model: PreTrainedModel, ids: list[int]) -> tuple[list[int], list[float]]:
    """GREEDY_STEPS tokens after `ids`, never stopping at eos, and each step's gap between the two best logits."""
    tokens, margins = [], []
    for _ in range(GREEDY_STEPS):
        best = logits_of(model, ids + tokens)[-1].topk(2)
        tokens.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
    return tokens, margins


def prompt_logprobs(logits: Tensor, ids: list[int]) -> list[float | None]:
    """log p of every prompt token given those before it; the first has none."""
    logprobs = logits.double().log_softmax(-1)
    return [None] + [logprobs[i - 1, ids[i]].item() for i in range(1, len(ids))]


def stored_positions(length: int) -> list[int]:
    """The prompt positions whose logits are stored."""
    return sorted({0, length // 2, length - 2, length - 1} & set(range(length)))


def random_prompt(model: PreTrainedModel, length: int, rng: np.random.Generator, vocab: int = VOCAB) -> list[int]:
    """Random ids, drawn again until every greedy step is clear, so that any f32 implementation takes the same ones."""
    while True:
        ids = rng.integers(0, vocab, length).tolist()
        if min(greedy(model, ids)[1]) > MIN_MARGIN:
            return ids


def golden_prompt(model: PreTrainedModel, ids: list[int]) -> dict:
    """One entry of golden.json's `prompts`."""
    logits = logits_of(model, ids)
    positions = stored_positions(len(ids))
    tokens, margins = greedy(model, ids)
    logprobs = prompt_logprobs(logits, ids)
    return {
        "ids": ids,
        "positions": positions,
        "logits": significant(logits[positions].tolist()),
        "prompt_logprobs": [None] + significant(logprobs[1:]),
        "greedy": tokens,
        "margins": significant(margins),
    }


def bf16_distance(exact: PreTrainedModel, rounded: PreTrainedModel, prompts: list[list[int]]) -> dict:
    """transformers' own bf16 against its f32 at the stored positions: worst and RMS logit difference, worst KL in nats."""
    worst, squares, worst_kl = 0.0, [], 0.0
    for ids in prompts:
        a, b = (logits_of(model, ids)[stored_positions(len(ids))] for model in (exact, rounded))
        worst = max(worst, (a - b).abs().max().item())
        squares.append((a - b).square().mean(-1))
        log_a, log_b = a.log_softmax(-1), b.log_softmax(-1)
        worst_kl = max(worst_kl, (log_a.exp() * (log_a - log_b)).sum(-1).max().item())
    rms = torch.cat(squares).mean().sqrt().item()
    return {"bf16_max": significant(worst, 3), "bf16_rms": significant(rms, 3), "bf16_kl": significant(worst_kl, 3)}


def make_family(folder: Path, family: Family) -> dict:
    """Writes one family's folder; returns the bf16 distances measured in transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model*"):
        old.unlink()
    write_json(folder / "config.json", {**family.config, "eos_token_id": family.eos})
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": family.eos})
    weights = (family.weights or random_weights)(family)
    with tempfile.TemporaryDirectory() as plain_folder:
        readable = folder
        if family.split:
            weights, plain = family.split(weights)
            readable = Path(plain_folder)
            write_json(readable / "config.json", {**family.computed, "eos_token_id": family.eos})
            save_weights(readable, plain, 1)
        save_weights(folder, weights, family.shards)
        model = load(readable, torch.float32)
        rounded = load(readable, torch.bfloat16)
    rng = np.random.default_rng(family.seed + 1000)
    prompts = [random_prompt(model, length, rng, family.vocab_size) for length in family.prompt_lengths]
    measured = bf16_distance(model, rounded, prompts)
    golden = {
        "family": family.name,
        "generator": generator_versions(),
        "tolerance": {**TOLERANCE, **family.tolerance},
        "measured_in_transformers": measured,
        "prompts": [golden_prompt(model, ids) for ids in prompts],
    }
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    return measured
