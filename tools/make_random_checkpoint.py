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

from model_shapes import SHAPES

DTYPES = {"bf16": ("BF16", "bfloat16", 2), "f16": ("F16", "float16", 2), "f32": ("F32", "float32", 4)}
BLOCK_VALUES = 1 << 22
DISTINCT_VALUES = 1 << 14
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


Tensors = Iterator[tuple[str, tuple[int, ...]]]


def is_recurrent(config: dict, index: int) -> bool:
    """Whether a layer of a hybrid has a delta net or a short convolution."""
    if "full_attn_idxs" in config:
        return index not in config["full_attn_idxs"]
    return (index + 1) % config.get("full_attention_interval", 1) != 0


def attention(config: dict) -> Tensors:
    hidden, heads, model = config["hidden_size"], config["num_attention_heads"], config["model_type"]
    head_dim = config.get("head_dim") or hidden // heads
    output = "out" if model == "lfm2" else "o"
    rows = {"q": heads * head_dim * (2 if model == "qwen3_next" else 1)}
    rows["k"] = rows["v"] = config["num_key_value_heads"] * head_dim
    for name, size in rows.items():
        yield f"self_attn.{name}_proj.weight", (size, hidden)
        if model in ("qwen2", "gpt_oss"):
            yield f"self_attn.{name}_proj.bias", (size,)
    yield f"self_attn.{output}_proj.weight", (hidden, heads * head_dim)
    if model == "gpt_oss":
        yield "self_attn.o_proj.bias", (hidden,)
        yield "self_attn.sinks", (heads,)
    norms = {"lfm2": "layernorm", "qwen3": "norm", "qwen3_moe": "norm", "qwen3_next": "norm"}
    if model in norms:
        yield f"self_attn.q_{norms[model]}.weight", (head_dim,)
        yield f"self_attn.k_{norms[model]}.weight", (head_dim,)


def latent_attention(config: dict) -> Tensors:
    hidden, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    yield "self_attn.q_proj.weight", (heads * (nope + rope), hidden)
    yield "self_attn.kv_a_proj_with_mqa.weight", (latent + rope, hidden)
    yield "self_attn.kv_a_layernorm.weight", (latent,)
    yield "self_attn.kv_b_proj.weight", (heads * (nope + value), latent)
    yield "self_attn.o_proj.weight", (hidden, heads * value)


def recurrent_mixer(config: dict) -> Tensors:
    hidden = config["hidden_size"]
    if config["model_type"] == "lfm2":
        yield "conv.in_proj.weight", (3 * hidden, hidden)
        yield "conv.conv.weight", (hidden, 1, config["conv_L_cache"])
        yield "conv.out_proj.weight", (hidden, hidden)
        return
    values = config["linear_num_value_heads"]
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value = values * config["linear_value_head_dim"]
    yield "linear_attn.in_proj_qkvz.weight", (keys + 2 * value, hidden)
    yield "linear_attn.in_proj_ba.weight", (2 * values, hidden)
    yield "linear_attn.conv1d.weight", (keys + value, 1, config["linear_conv_kernel_dim"])
    yield "linear_attn.dt_bias", (values,)
    yield "linear_attn.A_log", (values,)
    yield "linear_attn.norm.weight", (config["linear_value_head_dim"],)
    yield "linear_attn.out_proj.weight", (hidden, value)


def gated(place: str, parts: tuple[str, ...], inner: int, hidden: int) -> Tensors:
    yield f"{place}{parts[0]}.weight", (inner, hidden)
    yield f"{place}{parts[1]}.weight", (inner, hidden)
    yield f"{place}{parts[2]}.weight", (hidden, inner)


def fused_experts(config: dict) -> Tensors:
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    yield "mlp.router.weight", (experts, hidden)
    yield "mlp.router.bias", (experts,)
    yield "mlp.experts.gate_up_proj", (experts, hidden, 2 * inner)
    yield "mlp.experts.gate_up_proj_bias", (experts, 2 * inner)
    yield "mlp.experts.down_proj", (experts, inner, hidden)
    yield "mlp.experts.down_proj_bias", (experts, hidden)


def feed_forward(config: dict, index: int) -> Tensors:
    """(name within the layer, shape) of its feed-forward: one, or a router and the experts."""
    hidden, inner, model = config["hidden_size"], config["intermediate_size"], config["model_type"]
    place, parts, experts = "mlp.", ("gate_proj", "up_proj", "down_proj"), 0
    if model == "gpt_oss":
        yield from fused_experts(config)
        return
    if model == "lfm2":
        multiple = config["block_multiple_of"]
        width = -(-(2 * inner // 3) // multiple) * multiple
        yield from gated("feed_forward.", ("w1", "w3", "w2"), width, hidden)
        return
    if model == "mixtral":
        place, parts, experts = "block_sparse_moe.", ("w1", "w3", "w2"), config["num_local_experts"]
    elif model == "deepseek_v2":
        experts = config["n_routed_experts"] if index >= config["first_k_dense_replace"] else 0
    elif index not in config.get("mlp_only_layers", []) and (index + 1) % config.get("decoder_sparse_step", 1) == 0:
        experts = config.get("num_experts", 0)
    if not experts:
        yield from gated(place, parts, inner, hidden)
        return
    inner = config.get("moe_intermediate_size", inner)
    yield place + "gate.weight", (experts, hidden)
    for expert in range(experts):
        yield from gated(f"{place}experts.{expert}.", parts, inner, hidden)
    if model == "deepseek_v2":
        yield from gated(place + "shared_experts.", parts, config["n_shared_experts"] * inner, hidden)
    if model == "qwen3_next":
        yield from gated(place + "shared_expert.", parts, config["shared_expert_intermediate_size"], hidden)
        yield place + "shared_expert_gate.weight", (1, hidden)


def tensors(config: dict) -> Tensors:
    """(name, shape) of every tensor, in the order of the forward pass."""
    hidden, is_lfm2 = config["hidden_size"], config["model_type"] == "lfm2"
    norms = ("operator_norm", "ffn_norm") if is_lfm2 else ("input_layernorm", "post_attention_layernorm")
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        mixer = recurrent_mixer if is_recurrent(config, i) else latent_attention if "kv_lora_rank" in config else attention
        yield f"{layer}{norms[0]}.weight", (hidden,)
        for name, shape in mixer(config):
            yield layer + name, shape
        yield f"{layer}{norms[1]}.weight", (hidden,)
        for name, shape in feed_forward(config, i):
            yield layer + name, shape
    yield f"model.{'embedding_norm' if is_lfm2 else 'norm'}.weight", (hidden,)
    if not config.get("tie_word_embeddings", config.get("tie_embedding")):
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
    parser.add_argument("--experts", type=int, help="another number of experts per layer than the real model's")
    parser.add_argument("--tokenizer", type=Path, help="folder whose tokenizer files are copied")
    parser.add_argument("--std", type=float, default=0.02)
    parser.add_argument("--shard-gib", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    config = dict(SHAPES[args.shape])
    config["num_hidden_layers"] = args.layers or config["num_hidden_layers"]
    if args.experts is not None:
        keys = [key for key in ("num_experts", "n_routed_experts", "num_local_experts") if key in config]
        if not keys:
            parser.error(f"--experts: {args.shape} has no experts")
        if args.experts < config["num_experts_per_tok"]:
            parser.error(f"--experts: found {args.experts}, "
                         f"wanted at least num_experts_per_tok {config['num_experts_per_tok']}")
        config.update(dict.fromkeys(keys, args.experts))
    if "full_attn_idxs" in config:
        config["full_attn_idxs"] = [i for i in config["full_attn_idxs"] if i < config["num_hidden_layers"]]
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
