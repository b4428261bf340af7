"""Tiny checkpoints of the families with recurrent layers, and what transformers computes with them."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from golden_families import COMMON, DTYPES, INIT_STD, NORM_STD, Family
from golden_mixtures import random_parameter
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

BIAS_STD = 0.1
CONV_STD = 0.3
# With larger inputs silu is mostly positive, and so is q·k. Were it near 0, the norm of a delta net's output would make
# the rounding of bf16 large.
DELTA_CONV_STD = 1.0
# Decays of states lie between e^(-0.01) and e^(-2), so that tokens far back still count.
DECAY_RANGE = (0.1, 8.0)
STEP_MEAN = -2.0
STEP_STD = 0.5

_COMMON = {**COMMON, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
_QWEN_HYBRID = {
    **_COMMON,
    "attention_bias": False,
    "full_attention_interval": 4,
    "head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 24,
}
_LFM2 = {
    **{key: value for key, value in _COMMON.items() if key not in ("hidden_act", "rms_norm_eps", "tie_word_embeddings")},
    "conv_L_cache": 3,
    "conv_bias": False,
    "norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "tie_embedding": True,
}
# The chunked form that transformers computes prompts with rounds otherwise than the recurrent one. The norm of a delta
# net's output enlarges the errors of 8-bit weights, and experts turn by them.
_DENSE_TOLERANCE = {"f32_max": 1e-3, "w8_factor": 2.5}
_SPARSE_TOLERANCE = {"f32_max": 1e-3, "w8_factor": 4.0}
# The multipliers make small logits.
_FALCON_TOLERANCE = {"f32_max": 3e-5, "bf16_max": 0.06, "bf16_rms": 0.015, "bf16_kl": 2e-4}

_NEMOTRON = {
    **{key: value for key, value in _COMMON.items() if key not in ("hidden_act", "num_hidden_layers", "rms_norm_eps")},
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "attention_bias": False,
    "chunk_size": 16,
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 32,
    "layer_norm_epsilon": 1e-5,
    "mamba_head_dim": 16,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 8,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "n_groups": 4,
    "ssm_state_size": 16,
    # transformers clamps the steps of a prompt at time_step_min, but not those of single tokens.
    "time_step_min": 1e-30,
    "use_bias": False,
    "use_conv_bias": True,
}
_FALCON_H1 = {
    **_COMMON,
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "attention_bias": False,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.94,
    "embedding_multiplier": 5.6,
    "head_dim": 32,
    "key_multiplier": 0.4,
    "lm_head_multiplier": 0.25,
    "mamba_chunk_size": 16,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_proj_bias": False,
    "mlp_bias": False,
    "mlp_multipliers": [0.9, 0.6],
    "projectors_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000000000.0,
    "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.35, 0.25, 0.35, 0.5, 0.7],
    "ssm_out_multiplier": 0.24,
}

def hybrid_parameter(family: Family, name: str, shape: tuple[int, ...]) -> Tensor:
    """f32 values of one parameter."""
    rng = np.random.default_rng([family.seed, *name.encode()])
    if name.endswith("A_log"):
        values = np.log(rng.uniform(*DECAY_RANGE, shape))
    elif name.endswith("dt_bias"):
        values = STEP_MEAN + STEP_STD * rng.standard_normal(shape)
    elif name.endswith(".D"):
        values = 1 + NORM_STD * rng.standard_normal(shape)
    elif "conv" in name and len(shape) == 3:
        values = (DELTA_CONV_STD if "attn" in name else CONV_STD) * rng.standard_normal(shape)
    elif "bias" in name:
        values = BIAS_STD * rng.standard_normal(shape)
    elif "norm" in name:
        is_gated = name.endswith(("linear_attn.norm.weight", "mamba.norm.weight"))
        mean = 1.0 if is_gated else family.norm_mean
        values = mean + NORM_STD * rng.standard_normal(shape)
    elif ".experts." in name or "input_linear" in name or "output_linear" in name:
        return random_parameter(family.seed, name.replace("input_linear", "experts.input").replace(
            "output_linear", "experts.output"), shape)
    else:
        values = INIT_STD * rng.standard_normal(shape)
    return torch.from_numpy(values.astype(np.float32))

def is_correction(name: str) -> bool:
    """Whether a buffer holds the correction biases of experts."""
    return "expert_bias" in name or "e_score_correction_bias" in name

def hybrid_weights(family: Family) -> dict[str, Tensor]:
    """Random weights by the names under which transformers saves them, in the stored dtype. Correction biases of experts,
    and family.f32_parts, are f32."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**family.config), dtype=torch.float32)
    with torch.no_grad():
        buffers = [(name, each) for name, each in model.named_buffers() if is_correction(name)]
        for name, parameter in [*model.named_parameters(), *buffers]:
            parameter.copy_(hybrid_parameter(family, name, tuple(parameter.shape)))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(Path(folder) / "model.safetensors")
    dtype = DTYPES[family.dtype]
    def is_f32(name: str) -> bool:
        return is_correction(name) or any(part in name for part in family.f32_parts)
    return {name: w.contiguous() if is_f32(name) else w.to(dtype) for name, w in saved.items()}

def kimi_linear_weights(family: Family) -> dict[str, Tensor]:
    """hybrid_weights by their published names. transformers 5.24.0 saves those of a dense block as an expert block's."""
    dense = ".block_sparse_moe.{}_proj."
    names = {dense.format(part): f".mlp.{part}_proj." for part in ("gate", "up", "down")}
    renamed = {}
    for name, weight in hybrid_weights(family).items():
        for saved, published in names.items():
            name = name.replace(saved, published)
        renamed[name] = weight
    return renamed

_GRANITE4 = {
    **_COMMON,
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "attention_bias": False,
    "attention_multiplier": 0.25,
    "embedding_multiplier": 6.0,
    "logits_scaling": 0.5,
    "mamba_chunk_size": 16,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "residual_multiplier": 0.22,
    "rope_theta": 10000.0,
}

HYBRIDS = [
    Family(
        "qwen3next",
        seed=301,
        config={
            **_QWEN_HYBRID,
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "partial_rotary_factor": 0.25,
            "rope_scaling": None,
            "rope_theta": 10000000.0,
            "shared_expert_intermediate_size": 48,
        },
        eos=[2, 5],
        norm_mean=0.0,
        weights=hybrid_weights,
        prompt_lengths=(1, 3, 70, 150),
        tolerance=_SPARSE_TOLERANCE,
    ),
    Family(
        "qwen3_5",
        seed=302,
        config={
            **_QWEN_HYBRID,
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": [2, 1, 1],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10000000.0,
                "rope_type": "default",
            },
            "tie_word_embeddings": True,
        },
        eos=2,
        norm_mean=0.0,
        weights=hybrid_weights,
        prompt_lengths=(2, 33, 100),
        tolerance=_DENSE_TOLERANCE,
    ),
    Family(
        "lfm2",
        seed=303,
        config={
            **_LFM2,
            "architectures": ["Lfm2ForCausalLM"],
            "model_type": "lfm2",
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 32,
            "full_attn_idxs": [1],
            "intermediate_size": 192,
        },
        eos=7,
        weights=hybrid_weights,
        prompt_lengths=(1, 2, 33, 190),
    ),
    Family(
        "lfm2moe",
        seed=304,
        config={
            **_LFM2,
            "architectures": ["Lfm2MoeForCausalLM"],
            "model_type": "lfm2_moe",
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.0,
            "use_expert_bias": True,
        },
        eos=7,
        weights=hybrid_weights,
        prompt_lengths=(7, 100),
    ),
    Family(
        "granitemoehybrid",
        seed=305,
        config={
            **_GRANITE4,
            "intermediate_size": 32,
            "layer_types": ["mamba", "attention", "mamba", "mamba"],
            "mamba_d_head": 16,
            "mamba_n_groups": 2,
            "mamba_n_heads": 8,
            "mamba_proj_bias": False,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "position_embedding_type": "nope",
            "shared_intermediate_size": 72,
        },
        eos=2,
        weights=hybrid_weights,
        prompt_lengths=(1, 7, 33, 150),
    ),
    Family(
        "granite4-dense",
        seed=306,
        config={
            **_GRANITE4,
            "layer_types": ["attention", "mamba", "mamba", "attention"],
            "mamba_d_head": 32,
            "mamba_n_groups": 1,
            "mamba_n_heads": 4,
            "mamba_proj_bias": True,
            "num_experts_per_tok": 0,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "shared_intermediate_size": 128,
            "tie_word_embeddings": True,
        },
        eos=2,
        weights=hybrid_weights,
        prompt_lengths=(7, 100),
    ),
    Family(
        "nemotronh",
        seed=307,
        config={
            **_NEMOTRON,
            "hybrid_override_pattern": "-M*M-",
            "num_hidden_layers": 5,
        },
        eos=2,
        weights=hybrid_weights,
        prompt_lengths=(1, 7, 33, 150),
    ),
    Family(
        "nemotronh-moe",
        seed=308,
        config={
            **_NEMOTRON,
            "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba", "mlp"],
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 48,
            "n_group": 2,
            "n_groups": 2,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 2.5,
            "topk_group": 1,
        },
        eos=[2, 11],
        weights=hybrid_weights,
        prompt_lengths=(7, 100),
        f32_parts=("mixer.gate.",),
    ),
    Family(
        "nemotronh-latent",
        seed=313,
        config={
            **_NEMOTRON,
            "layers_block_type": ["mamba", "moe", "attention", "mamba", "moe"],
            "num_hidden_layers": 5,
            "moe_intermediate_size": 40,
            "moe_latent_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "n_group": 1,
            "n_groups": 2,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 2.5,
            "topk_group": 1,
        },
        eos=[2, 11],
        weights=hybrid_weights,
        prompt_lengths=(7, 100),
        f32_parts=("mixer.gate.",),
    ),
    Family(
        "falcon-h1",
        seed=309,
        config={
            **_FALCON_H1,
            "mamba_d_head": 16,
            "mamba_d_ssm": 96,
            "mamba_n_groups": 2,
            "mamba_n_heads": 6,
            "mamba_norm_before_gate": False,
            "mamba_rms_norm": True,
        },
        eos=11,
        weights=hybrid_weights,
        prompt_lengths=(1, 7, 33, 150),
        tolerance=_FALCON_TOLERANCE,
    ),
    Family(
        "falcon-h1-plain",
        seed=310,
        config={
            **_FALCON_H1,
            "mamba_d_head": 32,
            "mamba_d_ssm": 128,
            "mamba_n_groups": 1,
            "mamba_n_heads": 4,
            "mamba_norm_before_gate": False,
            "mamba_rms_norm": False,
            "tie_word_embeddings": True,
        },
        eos=11,
        weights=hybrid_weights,
        prompt_lengths=(7, 100),
        tolerance=_FALCON_TOLERANCE,
    ),
    Family(
        "falcon-h1-biases",
        seed=314,
        config={
            **_FALCON_H1,
            "attention_bias": True,
            "mamba_d_head": 16,
            "mamba_d_ssm": 96,
            "mamba_n_groups": 2,
            "mamba_n_heads": 6,
            "mamba_norm_before_gate": False,
            "mamba_proj_bias": True,
            "mamba_rms_norm": True,
            "mlp_bias": True,
            "projectors_bias": True,
        },
        eos=11,
        weights=hybrid_weights,
        prompt_lengths=(7, 100),
        tolerance=_FALCON_TOLERANCE,
    ),
    Family(
        "kimi-linear",
        seed=315,
        config={
            **{key: value for key, value in _COMMON.items() if key != "max_position_embeddings"},
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "first_k_dense_replace": 1,
            "kv_lora_rank": 32,
            "linear_attn_config": {
                "full_attn_layers": [3],
                "head_dim": 16,
                "kda_layers": [1, 2, 4],
                "num_heads": 4,
                "short_conv_kernel_size": 4,
            },
            "mla_use_nope": True,
            "model_max_length": 256,
            "moe_intermediate_size": 32,
            "moe_layer_freq": 1,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "num_expert_group": 1,
            "num_experts": 8,
            "num_experts_per_token": 2,
            "num_key_value_heads": 4,
            "num_nextn_predict_layers": 0,
            "num_shared_experts": 1,
            "pad_token_id": 0,
            "q_lora_rank": None,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 16,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "routed_scaling_factor": 2.446,
            "topk_group": 1,
            "use_grouped_topk": True,
            "v_head_dim": 24,
        },
        eos=2,
        weights=kimi_linear_weights,
        prompt_lengths=(1, 3, 70, 150),
        tolerance=_SPARSE_TOLERANCE,
        f32_parts=("gate.weight", "dt_bias", "A_log"),
    ),
]
