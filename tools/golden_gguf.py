"""Tiny checkpoints in GGUF files, and what transformers computes with their dequantized weights."""

import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from torch import Tensor

from golden_families import (
    TOLERANCE,
    Family,
    bf16_distance,
    generator_versions,
    golden_prompt,
    load,
    random_prompt,
    random_weights,
    save_weights,
    write_json,
)

SEED = 4201
PROMPT_LENGTHS = (7, 33, 100)
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
EXPERT_NAMES = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}


@dataclass
class Model:
    """A GGUF model: its golden family or config, the types that its matrices take in turn, and the files it has."""

    name: str
    source: str
    architecture: str
    types: tuple[Type, ...]
    shards: int = 1


MODELS = [
    Model("gguf-llama", "llama-tied", "llama", (Type.Q4_0, Type.Q8_0, Type.Q5_1, Type.Q4_1, Type.Q5_0), shards=2),
    Model("gguf-qwen2", "qwen2", "qwen2", (Type.F16, Type.Q8_0, Type.BF16)),
    Model("gguf-mixtral", "mixtral", "llama", (Type.Q8_0, Type.Q5_0)),
    Model("gguf-qwen3moe", "qwen3moe", "qwen3moe", (Type.Q8_0, Type.Q4_1, Type.F16)),
]
# The types of blocks of 256, which the library decodes only. Their codes are drawn.
K_FAMILY = Family(
    "gguf-k",
    seed=112,
    config={
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "use_cache": True,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
    },
    eos=2,
    dtype="float32",
)
K_MODELS = [
    Model("gguf-k", "", "llama", (Type.Q6_K, Type.Q4_K, Type.Q5_K, Type.IQ4_XS, Type.IQ4_NL, Type.MXFP4)),
    Model("gguf-k-low", "", "llama", (Type.Q6_K, Type.Q2_K, Type.Q3_K)),
]


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in the order of Llama's files: the halves of a head alternate."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpaired(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def random_blocks(kind: Type, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Bytes of a matrix of a type, whose values are about as large as those of other golden models."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)

    def half(value: float) -> np.ndarray:
        return np.frombuffer(np.float16(value).tobytes(), np.uint8)

    if kind in (Type.Q4_K, Type.Q5_K):
        blocks[..., :2], blocks[..., 2:4] = half(6e-4 if kind == Type.Q4_K else 3e-4), half(4.5e-3)
    elif kind == Type.Q2_K:
        blocks[..., 80:82], blocks[..., 82:] = half(6e-3), half(9e-3)
    elif kind == Type.Q3_K:
        blocks[..., 108:] = half(1.5e-3)
    elif kind == Type.Q6_K:
        blocks[..., 192:208] = rng.integers(20, 40, blocks[..., 192:208].shape)
        blocks[..., 208:] = half(2.5e-4)
    elif kind in (Type.IQ4_XS, Type.IQ4_NL):
        blocks[..., :2] = half(1.2e-4 if kind == Type.IQ4_XS else 2e-3)
    elif kind == Type.MXFP4:
        blocks[..., 0] = 127 - 4
    return blocks.reshape(shape[0], -1)


class Writer:
    """Writes one model's file and keeps what its tensors decode to, by their names in safetensors."""

    def __init__(self, path: Path, model: Model, config: dict):
        self.model, self.config, self.path = model, config, path
        self.rng = np.random.default_rng(SEED)
        self.writer = gguf.GGUFWriter(path, model.architecture)
        self.count = 0
        self.decoded: dict[str, Tensor] = {}

    def next_type(self, columns: int) -> Type:
        kind = self.model.types[self.count % len(self.model.types)]
        self.count += 1
        return kind if columns % gguf.GGML_QUANT_SIZES[kind][0] == 0 else Type.F16

    def stored(self, values: np.ndarray, kind: Type) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of a matrix, and its values as they decode."""
        if self.model in K_MODELS:
            data = random_blocks(kind, values.shape, self.rng)
        else:
            data = gguf.quantize(values, kind)
        return data, gguf.dequantize(data, kind).reshape(values.shape)

    def heads_of(self, part: str) -> int:
        if self.model.architecture != "llama":
            return 0
        counts = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
        return self.config[counts[part]] if part in counts else 0

    def add(self, name: str, stored_name: str, values: np.ndarray, part: str) -> None:
        heads = self.heads_of(part)
        rows = paired(values, heads) if heads else values
        plain = rows.ndim == 1 or part == "ffn_gate_inp"
        kind = Type.F32 if plain else self.next_type(rows.shape[-1])
        data, decoded = (rows, rows) if plain else self.stored(rows, kind)
        self.writer.add_tensor(stored_name, data, raw_dtype=None if plain else kind)
        self.decoded[name] = torch.from_numpy(np.array(unpaired(decoded, heads) if heads else decoded))

    def add_experts(self, place: str, part: str, stored_name: str, experts: list[np.ndarray]) -> None:
        stack = np.stack(experts)
        kind = self.next_type(stack.shape[-1])
        data, decoded = self.stored(stack.reshape(-1, stack.shape[-1]), kind)
        self.writer.add_tensor(stored_name, data.reshape(*stack.shape[:2], -1), raw_dtype=kind)
        for e, values in enumerate(decoded.reshape(stack.shape)):
            self.decoded[f"{place}.experts.{e}.{part}.weight"] = torch.from_numpy(np.array(values))

    def add_tensors(self, weights: dict[str, Tensor]) -> None:
        arrays = {name: w.float().numpy() for name, w in weights.items()}
        self.add("model.embed_tokens.weight", "token_embd.weight", arrays["model.embed_tokens.weight"], "")
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            own = {name.removeprefix(prefix): w for name, w in arrays.items() if name.startswith(prefix)}
            for name, w in own.items():
                module, ending = name.rsplit(".", 1)
                if ".experts." in name:
                    place, rest = module.split(".experts.")
                    expert, part = rest.split(".")
                    if expert == "0":
                        count = sum(n.endswith(f".{part}.weight") and ".experts." in n for n in own)
                        experts = [own[f"{place}.experts.{e}.{part}.weight"] for e in range(count)]
                        self.add_experts(prefix + place, part, f"blk.{layer}.{EXPERT_NAMES[part]}.weight", experts)
                else:
                    stored = LAYER_NAMES[module]
                    self.add(prefix + name, f"blk.{layer}.{stored}.{ending}", w, stored)
        self.add("model.norm.weight", "output_norm.weight", arrays["model.norm.weight"], "")
        if "lm_head.weight" in arrays:
            self.add("lm_head.weight", "output.weight", arrays["lm_head.weight"], "")

    def add_metadata(self) -> None:
        c, w = self.config, self.writer
        rope = c.get("rope_parameters") or {"rope_theta": c.get("rope_theta", 10000.0), **(c.get("rope_scaling") or {})}
        head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        w.add_context_length(c["max_position_embeddings"])
        w.add_embedding_length(c["hidden_size"])
        w.add_block_count(c["num_hidden_layers"])
        w.add_feed_forward_length(c["intermediate_size"])
        w.add_head_count(c["num_attention_heads"])
        w.add_head_count_kv(c["num_key_value_heads"])
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_rope_freq_base(rope["rope_theta"])
        if rope.get("rope_type", rope.get("type", "default")) == "llama3":
            self.add_rope_factors(rope, head_dim)
        experts = c.get("num_experts") or c.get("num_local_experts")
        if experts:
            w.add_expert_count(experts)
            w.add_expert_used_count(c["num_experts_per_tok"])
            if "moe_intermediate_size" in c:
                w.add_expert_feed_forward_length(c["moe_intermediate_size"])

    def add_rope_factors(self, rope: dict, head_dim: int) -> None:
        """The numbers by which each frequency of Llama 3 is divided."""
        frequencies = rope["rope_theta"] ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        self.writer.add_tensor(
            "rope_freqs.weight", (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)
        )

    def write(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def make_model(out: Path, model: Model, config: dict, weights: dict[str, Tensor], work: Path) -> None:
    """Writes `out`/NAME with the GGUF files, and golden.json by way of a plain checkpoint in `work`."""
    folder = out / model.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    writer = Writer(folder / f"{model.name}.gguf", model, config)
    if model.shards > 1:
        writer.writer = gguf.GGUFWriter(
            folder / f"{model.name}.gguf", model.architecture, split_max_tensors=-(-len(weights) // model.shards) + 1
        )
    writer.add_metadata()
    writer.add_tensors(weights)
    writer.write()
    work.mkdir(parents=True, exist_ok=True)
    write_json(work / "config.json", {**config, "torch_dtype": "float32", "dtype": "float32"})
    save_weights(work, {name: w.contiguous() for name, w in writer.decoded.items()}, 1)
    reference = load(work, torch.float32)
    rng = np.random.default_rng(SEED)
    prompts = [random_prompt(reference, length, rng) for length in PROMPT_LENGTHS]
    measured = bf16_distance(reference, load(work, torch.bfloat16), prompts)
    golden = {
        "family": model.name,
        "generator": {**generator_versions(), "gguf": "0.19.0"},
        "tolerance": {key: max(value, 2 * measured.get(key, 0)) for key, value in TOLERANCE.items()},
        "measured_in_transformers": measured,
        "prompts": [golden_prompt(reference, ids) for ids in prompts],
    }
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def make_gguf(out: Path, work: Path) -> None:
    """Writes all models of MODELS and K_MODELS. The golden families must exist in `out`."""
    for model in MODELS:
        source = out / model.source
        make_model(out, model, json.loads((source / "config.json").read_text()),
                   load_file(source / "model.safetensors"), work / model.name)
    for model in K_MODELS:
        make_model(out, model, {**K_FAMILY.config, "eos_token_id": K_FAMILY.eos}, random_weights(K_FAMILY),
                   work / model.name)
