#!/usr/bin/env python3
"""Writes a checkpoint of a real model's shape with random weights, for benchmarks. Needs nothing but Python."""

import argparse
import json
import math
import random
import shutil
import struct
from pathlib import Path
from typing import BinaryIO, Iterator

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}
_QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "attention_bias": False,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "use_sliding_window": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
    "bos_token_id": 151643,
    "eos_token_id": [151645, 151643],
}

SHAPES: dict[str, dict] = {
    "smollm2-135m": {
        **_LLAMA,
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "max_window_layers": 21,
        "use_sliding_window": False,
        "sliding_window": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": [151645, 151643],
    },
    "llama-3.2-1b": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rope_scaling": {**_LLAMA3_ROPE, "factor": 32.0},
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rope_scaling": {**_LLAMA3_ROPE, "factor": 8.0},
        "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": _QWEN3_MOE,
    # No real model's: the one above made smaller, 1.7 GB in bf16, of which a token takes 0.35 GB.
    "qwen3-moe-0.8b": {
        **_QWEN3_MOE,
        "vocab_size": 32768,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 10,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "num_experts": 64,
        "moe_intermediate_size": 384,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_act": "silu",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "sliding_window": None,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}

DTYPES = {"bf16": ("BF16", "bfloat16", 2), "f16": ("F16", "float16", 2), "f32": ("F32", "float32", 4)}
BLOCK_VALUES = 1 << 22
DISTINCT_VALUES = 1 << 14
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def feed_forward(config: dict, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name within the layer, shape) of its feed-forward: one, or a router and the experts."""
    hidden = config["hidden_size"]
    if config["model_type"] == "mixtral":
        place, parts, inner = "block_sparse_moe.", ("w1", "w3", "w2"), config["intermediate_size"]
        experts = config["num_local_experts"]
    else:
        place, parts, inner = "mlp.", ("gate_proj", "up_proj", "down_proj"), config["intermediate_size"]
        sparse = index not in config.get("mlp_only_layers", []) and (index + 1) % config.get("decoder_sparse_step", 1) == 0
        experts = config.get("num_experts", 0) if sparse else 0
    owners = [place]
    if experts:
        yield place + "gate.weight", (experts, hidden)
        owners = [f"{place}experts.{e}." for e in range(experts)]
        inner = config.get("moe_intermediate_size", inner)
    for owner in owners:
        yield f"{owner}{parts[0]}.weight", (inner, hidden)
        yield f"{owner}{parts[1]}.weight", (inner, hidden)
        yield f"{owner}{parts[2]}.weight", (hidden, inner)


def tensors(config: dict) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor, in the order of the forward pass."""
    hidden = config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    rows = {"q": config["num_attention_heads"] * head_dim}
    rows["k"] = rows["v"] = config["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        for name, size in rows.items():
            yield f"{layer}self_attn.{name}_proj.weight", (size, hidden)
            if config["model_type"] == "qwen2":
                yield f"{layer}self_attn.{name}_proj.bias", (size,)
        if config["model_type"] == "qwen3_moe":
            yield layer + "self_attn.q_norm.weight", (head_dim,)
            yield layer + "self_attn.k_norm.weight", (head_dim,)
        yield layer + "self_attn.o_proj.weight", (hidden, rows["q"])
        yield layer + "post_attention_layernorm.weight", (hidden,)
        for name, shape in feed_forward(config, i):
            yield layer + name, shape
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def encode(value: float, dtype: str) -> bytes:
    """A value in the stored dtype, little-endian; bf16 by rounding to nearest even."""
    if dtype == "f32":
        return struct.pack("<f", value)
    if dtype == "f16":
        return struct.pack("<e", value)
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.pack("<H", (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


class RandomBlock:
    """One block of noise, repeated from a new offset for every tensor: quick, and no two tensors are equal. Its
    values are drawn from DISTINCT_VALUES of a normal distribution."""

    def __init__(self, dtype: str, std: float, seed: int) -> None:
        self.draw = random.Random(seed)
        values = [encode(self.draw.gauss(0.0, std), dtype) for _ in range(DISTINCT_VALUES)]
        self.noise = memoryview(b"".join(self.draw.choices(values, k=BLOCK_VALUES)))
        self.one = encode(1.0, dtype)

    def write(self, file: BinaryIO, name: str, size_bytes: int) -> None:
        if "norm" in name:
            file.write(self.one * (size_bytes // len(self.one)))
            return
        start = self.draw.randrange(BLOCK_VALUES) * len(self.one)
        while size_bytes > 0:
            piece = self.noise[start : start + size_bytes]
            file.write(piece)
            size_bytes -= len(piece)
            start = 0


def plan_shards(config: dict, value_bytes: int, shard_bytes: int) -> list[dict[str, tuple[int, ...]]]:
    """Tensors in order, cut into files of at most `shard_bytes`, or of one larger tensor."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    used_bytes = 0
    for name, shape in tensors(config):
        size_bytes = math.prod(shape) * value_bytes
        if shards[-1] and used_bytes + size_bytes > shard_bytes:
            shards.append({})
            used_bytes = 0
        shards[-1][name] = shape
        used_bytes += size_bytes
    return shards


def write_shard(path: Path, shard: dict[str, tuple[int, ...]], dtype: str, block: RandomBlock) -> int:
    """Writes one safetensors file; returns its tensors' bytes."""
    stored, _, value_bytes = DTYPES[dtype]
    header: dict = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shard.items():
        end = offset + math.prod(shape) * value_bytes
        header[name] = {"dtype": stored, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in shard:
            start, end = header[name]["data_offsets"]
            block.write(file, name, end - start)
    return offset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--layers", type=int, help="another number of layers than the real model's")
    parser.add_argument("--tokenizer", type=Path, help="folder whose tokenizer files are copied")
    parser.add_argument("--std", type=float, default=0.02)
    parser.add_argument("--shard-gib", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    config = dict(SHAPES[args.shape])
    config["num_hidden_layers"] = args.layers or config["num_hidden_layers"]
    _, torch_dtype, value_bytes = DTYPES[args.dtype]
    config["torch_dtype"] = torch_dtype
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    (args.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    for name in TOKENIZER_FILES:
        if args.tokenizer and (args.tokenizer / name).exists():
            shutil.copyfile(args.tokenizer / name, args.out / name)

    block = RandomBlock(args.dtype, args.std, args.seed)
    shards = plan_shards(config, value_bytes, int(args.shard_gib * 2**30))
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for i, shard in enumerate(shards):
        name = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        total_bytes += write_shard(args.out / name, shard, args.dtype, block)
        weight_map.update(dict.fromkeys(shard, name))
    if len(shards) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (args.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    print(f"{args.out}: {total_bytes / 1e9:.2f} GB in {len(shards)} file(s)")


if __name__ == "__main__":
    main()
