"""Tiny checkpoints of the families with routers, shared experts and experts of their own kinds."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from golden_dense import HUNYUAN_ROPE, SHORT_LENGTHS
from golden_families import COMMON, DTYPES, EXPERT_SPREAD, INIT_STD, NORM_STD, SMALL, Family, auto_class
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

BIAS_STD = 0.1
SINK_STD = 1.0
MXFP4_BLOCK = 32
MXFP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

_COMMON = {**COMMON, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
_GPT_OSS = {
    **_COMMON,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "head_dim": 32,
    "intermediate_size": 64,
    "attention_bias": True,
    "attention_dropout": 0.0,
    "experts_per_token": 2,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "initial_context_length": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000.0,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 16,
    "swiglu_limit": 7.0,
}


_GEMMA4 = {
    **{key: value for key, value in COMMON.items() if key != "hidden_act"},
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "head_dim": 16,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 10.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 0,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 16,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def scale_of(name: str) -> float:
    """The deviation of a parameter's random values."""
    if "sinks" in name:
        return SINK_STD
    return BIAS_STD if "bias" in name else INIT_STD


def random_parameter(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """f32 values of one parameter; the experts of a layer, its first dimension, have a part in common."""
    rng = np.random.default_rng([seed, *name.encode()])
    noise = rng.standard_normal(shape, dtype=np.float32)
    if "norm" in name or name.endswith(("scale", "scalar")):
        return torch.from_numpy((1 + NORM_STD * noise).astype(np.float32))
    if ".experts." in name:
        noise = (rng.standard_normal(shape[1:], dtype=np.float32) + EXPERT_SPREAD * noise) / np.sqrt(1 + EXPERT_SPREAD**2)
    return torch.from_numpy((scale_of(name) * noise).astype(np.float32))


def mixture_weights(family: Family) -> dict[str, Tensor]:
    """Random weights by the names under which transformers saves them. Correction biases, and the tensors whose names
    contain one of the family's `f32_parts`, are f32; the others have the stored dtype."""
    config = AutoConfig.for_model(**family.computed)
    model = auto_class(family.computed).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        buffers = [(name, each) for name, each in model.named_buffers() if name.endswith(("correction_bias", "layer_scalar"))]
        for name, parameter in [*model.named_parameters(), *buffers]:
            values = random_parameter(family.seed, name, tuple(parameter.shape))
            parameter.copy_(values * family.query_norm if "q_norm" in name else values)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(Path(folder) / "model.safetensors")
    kept = ("correction_bias", "expert_bias", *family.f32_parts)
    dtype = DTYPES[family.dtype]
    return {name: w.contiguous() if any(part in name for part in kept) else w.to(dtype) for name, w in saved.items()}


def to_mxfp4(values: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks u8 [..., N/32, 16] and scales u8 [..., N/32] of the nearest MXFP4 values along the last dimension."""
    blocks = values.float().reshape(*values.shape[:-1], -1, MXFP4_BLOCK)
    largest = blocks.abs().amax(-1)
    exponent = torch.clamp(torch.floor(torch.log2(largest.clamp(min=2.0**-100))) - 2, -127, 127)
    scaled = blocks / torch.exp2(exponent)[..., None]
    levels = torch.tensor(MXFP4_VALUES)
    codes = (scaled.abs()[..., None] - levels).abs().argmin(-1).to(torch.uint8) + 8 * (scaled < 0).to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), (exponent + 127).to(torch.uint8)


def from_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """f32 [..., N] of such blocks."""
    signed = torch.tensor([*MXFP4_VALUES, *(-v for v in MXFP4_VALUES)])
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    return (signed[codes] * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)


def split_mxfp4(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A gpt-oss checkpoint whose experts are stored in MXFP4, and the same with these values as floating point."""
    stored, plain = dict(weights), dict(weights)
    for name, w in weights.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        blocks, scales = to_mxfp4(w.transpose(-1, -2).contiguous())  # [E, out, in]
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name] = from_mxfp4(blocks, scales).transpose(-1, -2).contiguous().to(w.dtype)
    return stored, plain


MIXTURES = [
    Family(
        "llama4",
        seed=220,
        config={
            **_COMMON,
            "architectures": ["Llama4ForCausalLM"],
            "model_type": "llama4_text",
            "attention_bias": False,
            "attention_chunk_size": 64,
            "attn_scale": 0.1,
            "attn_temperature_tuning": True,
            "floor_scale": 32,
            "head_dim": 32,
            "interleave_moe_layer_step": 2,
            "intermediate_size": 40,
            "intermediate_size_mlp": 128,
            "no_rope_layer_interval": 4,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_parameters": {
                "factor": 8.0,
                "high_freq_factor": 1.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 500000.0,
                "rope_type": "llama3",
            },
            "use_qk_norm": True,
        },
        eos=[2, 5],
        prompt_lengths=(7, 100, 190),
        weights=mixture_weights,
    ),
    Family(
        "gemma4",
        seed=218,
        config={
            **_GEMMA4,
            "enable_moe_block": False,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "use_bidirectional_attention": "vision",
        },
        eos=[1, 5],
        prompt_lengths=(7, 33, 190),
        query_norm=0.3,
        weights=mixture_weights,
    ),
    Family(
        "gemma4-moe",
        seed=219,
        config={
            **_GEMMA4,
            "enable_moe_block": True,
            "intermediate_size": 96,
            "moe_intermediate_size": 40,
            "num_experts": 8,
            "top_k_experts": 2,
            "per_layer_config": {str(n): {"head_dim": 32, "num_key_value_heads": 1} for n in (1, 3, 5)},
        },
        eos=[1, 5],
        prompt_lengths=(7, 33, 190),
        query_norm=0.3,
        weights=mixture_weights,
    ),
    Family(
        "gemma4-e",
        seed=220,
        config={
            **_GEMMA4,
            "attention_k_eq_v": False,
            "enable_moe_block": False,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 64,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "vocab_size_per_layer_input": 512,
        },
        eos=[1, 5],
        prompt_lengths=(7, 33, 190),
        query_norm=0.3,
        weights=mixture_weights,
    ),
    Family(
        "qwen2moe",
        seed=201,
        config={
            **_COMMON,
            "architectures": ["Qwen2MoeForCausalLM"],
            "model_type": "qwen2_moe",
            "decoder_sparse_step": 1,
            "max_window_layers": 2,
            "mlp_only_layers": [1],
            "moe_intermediate_size": 40,
            "norm_topk_prob": False,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "rope_theta": 1000000.0,
            "shared_expert_intermediate_size": 72,
            "sliding_window": 16,
            "use_sliding_window": False,
        },
        eos=[2, 5],
        weights=mixture_weights,
    ),
    Family(
        "granitemoe",
        seed=202,
        config={
            **_COMMON,
            "architectures": ["GraniteMoeForCausalLM"],
            "model_type": "granitemoe",
            "attention_bias": False,
            "attention_multiplier": 0.25,
            "embedding_multiplier": 6.0,
            "intermediate_size": 40,
            "logits_scaling": 0.5,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "residual_multiplier": 0.22,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
        },
        eos=2,
        weights=mixture_weights,
    ),
    Family(
        "ernie4_5moe",
        seed=203,
        config={
            **_COMMON,
            "architectures": ["Ernie4_5_MoeForCausalLM"],
            "model_type": "ernie4_5_moe",
            "head_dim": 32,
            "moe_capacity": [64, 64, 64],
            "moe_gate": "topk",
            "moe_intermediate_size": 40,
            "moe_k": 2,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
            "moe_layer_start_index": 1,
            "moe_num_experts": 8,
            "moe_num_shared_experts": 2,
            "moe_use_aux_free": True,
            "num_nextn_predict_layers": 1,
            "rms_norm_eps": 1e-5,
            "rope_scaling": None,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "use_bias": False,
        },
        eos=2,
        weights=mixture_weights,
        f32_parts=("mlp.gate.weight",),
    ),
    Family(
        "glm4moe",
        seed=204,
        config={
            **_COMMON,
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "head_dim": 32,
            "moe_intermediate_size": 40,
            "n_group": 4,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 2,
            "num_nextn_predict_layers": 1,
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-5,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "routed_scaling_factor": 2.5,
            "topk_group": 2,
            "use_qk_norm": True,
        },
        eos=[2, 5],
        weights=mixture_weights,
    ),
    Family(
        "hunyuan-moe",
        seed=133,
        config={
            **SMALL,
            "architectures": ["HunYuanMoEV1ForCausalLM"],
            "model_type": "hunyuan_v1_moe",
            "attention_bias": False,
            "attention_head_dim": 16,
            "group_limited_greedy": False,
            "intermediate_size": 40,
            "mlp_bias": False,
            "moe_intermediate_size": [40] * 4,
            "moe_layer_num_skipped": 0,
            "moe_topk": [2] * 4,
            "n_group": False,
            "norm_topk_prob": True,
            "norm_type": "rms",
            "num_experts": 8,
            "num_shared_expert": [1] * 4,
            "pad_token_id": 0,
            "position_embedding_xdrope": False,
            "rope_scaling": HUNYUAN_ROPE,
            "rope_theta": 10000.0,
            "routed_scaling_factor": False,
            "tie_word_embeddings": True,
            "topk_group": False,
            "use_cla": False,
            "use_mixed_mlp_moe": True,
            "use_mla": False,
            "use_qk_norm": True,
            "use_rotary_pos_emb": True,
        },
        eos=2,
        prompt_lengths=SHORT_LENGTHS,
        weights=mixture_weights,
        f32_parts=("gate.wg",),
    ),
    Family(
        "hyv3",
        seed=205,
        config={
            **_COMMON,
            "architectures": ["HYV3ForCausalLM"],
            "model_type": "hy_v3",
            "enable_moe_fp32_combine": False,
            "first_k_dense_replace": 1,
            "head_dim": 32,
            "moe_intermediate_size": 40,
            "moe_router_enable_expert_bias": True,
            "moe_router_use_sigmoid": True,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "qk_norm": True,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"},
            "route_norm": True,
            "router_scaling_factor": 2.826,
        },
        eos=2,
        weights=mixture_weights,
    ),
    Family(
        "minimax_m2",
        seed=206,
        config={
            **_COMMON,
            "architectures": ["MiniMaxM2ForCausalLM"],
            "model_type": "minimax_m2",
            "attn_type_list": [1, 1, 1, 1],
            "head_dim": 32,
            "intermediate_size": 40,
            "mtp_transformer_layers": 1,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "num_mtp_modules": 3,
            "qk_norm_type": "per_layer",
            "rope_theta": 5000000.0,
            "rotary_dim": 16,
            "scoring_func": "sigmoid",
            "shared_intermediate_size": 0,
            "use_mtp": True,
            "use_qk_norm": True,
            "use_routing_bias": True,
        },
        eos=2,
        weights=mixture_weights,
    ),
    Family("gpt_oss", seed=207, config=_GPT_OSS, eos=2, weights=mixture_weights),
    Family(
        "gpt_oss-mxfp4",
        seed=208,
        config={
            **_GPT_OSS,
            "quantization_config": {
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
                "quant_method": "mxfp4",
            },
        },
        eos=2,
        weights=mixture_weights,
        prompt_lengths=(7, 100),
        split=split_mxfp4,
    ),
]
