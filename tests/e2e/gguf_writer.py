"""Writes the shipped model as GGUF files whose bf16 weights have the bits of its safetensors."""

import json
import struct

U16, U32, F32, BOOL, STRING, ARRAY, I32 = 2, 4, 6, 7, 8, 9, 5
BF16, F32_TENSOR = 30, 0
ALIGNMENT = 32
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(kind, value):
    if kind == STRING:
        return text(value)
    return struct.pack({U16: "<H", U32: "<I", F32: "<f", BOOL: "<?", I32: "<i"}[kind], value)


def entry(key, kind, value):
    if isinstance(value, list):
        items = b"".join(value_of(kind, item) for item in value)
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(value)) + items
    return text(key) + struct.pack("<I", kind) + value_of(kind, value)


def read_tensors(path):
    """Returns {name: (shape, bytes)} of a file of bf16 tensors."""
    data = path.read_bytes()
    header_end = 8 + struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:header_end])
    header.pop("__metadata__", None)
    assert all(info["dtype"] == "BF16" for info in header.values())
    return {name: (info["shape"], data[header_end + info["data_offsets"][0]:header_end + info["data_offsets"][1]])
            for name, info in header.items()}


def paired_rows(data, row_count, heads):
    """Rows of q or k as Llama's files have them: row 2i and 2i+1 of a head are its rows i and i + half."""
    size = len(data) // row_count
    rows = [data[i * size:(i + 1) * size] for i in range(row_count)]
    head = row_count // heads
    return b"".join(rows[h * head + i + half * head // 2] for h in range(heads) for i in range(head // 2) for half in (0, 1))


def as_f32(data):
    """Norms are F32 in all files."""
    return b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))


def tensors_of(folder, config):
    """Returns (name, shape, type, bytes) in the order of layers."""
    found = []
    for name, (shape, data) in read_tensors(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module in OUTER_NAMES:
            stored = OUTER_NAMES[module]
        else:
            _, _, layer, part = module.split(".", 3)
            stored = f"blk.{layer}.{LAYER_NAMES[part]}"
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(stored.split(".")[-1])
        if heads:
            data = paired_rows(data, shape[0], heads)
        kind = BF16 if len(shape) == 2 else F32_TENSOR
        found.append((stored + ".weight", shape, kind, data if kind == BF16 else as_f32(data)))
    return sorted(found)


def tokenizer_metadata(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    by_id = {id_: token for token, id_ in tokenizer["model"]["vocab"].items()}
    by_id |= {id_: token["content"] for id_, token in added.items()}
    ids = range(max(by_id) + 1)
    kinds = [NORMAL if i not in added else CONTROL if added[i]["special"] else USER_DEFINED for i in ids]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    named = json.loads((folder / "tokenizer_config.json").read_text())
    ids_of = {token: i for i, token in by_id.items()}
    metadata = [("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "gpt-2"),
                ("tokenizer.ggml.add_bos_token", BOOL, True), ("tokenizer.ggml.tokens", STRING, [by_id[i] for i in ids]),
                ("tokenizer.ggml.token_type", I32, kinds), ("tokenizer.ggml.merges", STRING, merges)]
    for key, name in (("bos_token", "bos_token_id"), ("eos_token", "eos_token_id")):
        if named.get(key):
            metadata.append((f"tokenizer.ggml.{name}", U32, ids_of[named[key]]))
    if "chat_template" in named:
        metadata.append(("tokenizer.chat_template", STRING, named["chat_template"]))
    return metadata


def model_metadata(config):
    return [("general.architecture", STRING, "llama"),
            ("llama.block_count", U32, config["num_hidden_layers"]),
            ("llama.context_length", U32, config["max_position_embeddings"]),
            ("llama.embedding_length", U32, config["hidden_size"]),
            ("llama.feed_forward_length", U32, config["intermediate_size"]),
            ("llama.attention.head_count", U32, config["num_attention_heads"]),
            ("llama.attention.head_count_kv", U32, config["num_key_value_heads"]),
            ("llama.attention.key_length", U32, config["head_dim"]),
            ("llama.attention.value_length", U32, config["head_dim"]),
            ("llama.attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"]),
            ("llama.rope.freq_base", F32, config["rope_theta"])]


def write_file(path, metadata, tensors):
    infos, data = b"", b""
    for name, shape, kind, content in tensors:
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(data))
        data += content + bytes(-len(content) % ALIGNMENT)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    header += b"".join(entry(*each) for each in metadata) + infos
    path.write_bytes(header + bytes(-len(header) % ALIGNMENT) + data)


def write_gguf(folder, out, name="books", parts=1):
    """Writes the model of a folder to `out`. Returns the path of the file, or of its first part."""
    config = json.loads((folder / "config.json").read_text())
    metadata = model_metadata(config) + tokenizer_metadata(folder)
    tensors = tensors_of(folder, config)
    if parts == 1:
        write_file(out / f"{name}.gguf", metadata, tensors)
        return out / f"{name}.gguf"
    size = -(-len(tensors) // parts)
    for part in range(parts):
        split = [("split.no", U16, part), ("split.count", U16, parts), ("split.tensors.count", I32, len(tensors))]
        path = out / f"{name}-{part + 1:05}-of-{parts:05}.gguf"
        write_file(path, (metadata if part == 0 else []) + split, tensors[part * size:(part + 1) * size])
    return out / f"{name}-00001-of-{parts:05}.gguf"
