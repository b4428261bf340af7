"""Tiny checkpoints of families whose experts are chosen by sigmoid scores, and of wrappers around other families."""

import torch
from golden_families import SMALL, Family
from golden_mixtures import mixture_weights
from torch import Tensor

LENGTHS = (7, 100)
_EXPERTS = {**SMALL, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
# DeepSeek-V3's router, by its names of members. There are no groups, since transformers takes experts of other groups
# where all of the chosen ones have values below 0. Shared experts are wide enough for four ranks.
_GROUPS = {
    **_EXPERTS,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "topk_group": 1,
}
# The same by other names, which several families have.
_NUMBERED = {
    **{key: value for key, value in _GROUPS.items() if key not in ("n_routed_experts", "n_shared_experts")},
    "num_experts": 4,
    "num_shared_experts": 2,
}
_NOT_AFMOE = ("first_k_dense_replace", "norm_topk_prob", "routed_scaling_factor")
_BAILING = {
    "attention.dense": "self_attn.o_proj",
    "attention.query_layernorm": "self_attn.q_norm",
    "attention.key_layernorm": "self_attn.k_norm",
    "mlp.gate.expert_bias": "mlp.gate.e_score_correction_bias",
    "model.word_embeddings": "model.embed_tokens",
}


def to_bailing(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint of Ling 2.0, and the one of GLM-4.5 that it is renamed from. Its q, k and v are one tensor."""
    stored = dict(weights)
    for name in weights:
        if not name.endswith("self_attn.q_proj.weight"):
            continue
        parts = [stored.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        stored[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
    for own, theirs in _BAILING.items():
        stored = {name.replace(theirs, own): w for name, w in stored.items()}
    return stored, weights


SIGMOID_MIXTURES = [
    Family(
        "afmoe",
        seed=221,
        config={
            **{key: value for key, value in _NUMBERED.items() if key not in _NOT_AFMOE},
            "architectures": ["AfmoeForCausalLM"],
            "model_type": "afmoe",
            "global_attn_every_n_layers": 4,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "mup_enabled": True,
            "n_group": 1,
            "num_dense_layers": 1,
            "rope_theta": 10000.0,
            "route_norm": True,
            "route_scale": 2.448,
            "score_func": "sigmoid",
            "sliding_window": 16,
            "topk_group": 1,
        },
        eos=2,
        prompt_lengths=LENGTHS,
        weights=mixture_weights,
    ),
    Family(
        "exaone-moe",
        seed=222,
        config={
            **_NUMBERED,
            "architectures": ["ExaoneMoeForCausalLM"],
            "model_type": "exaone_moe",
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "mlp_layer_types": ["dense"] + ["sparse"] * 3,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "scoring_func": "sigmoid",
            "sliding_window": 16,
            "sliding_window_pattern": "LLLG",
        },
        eos=2,
        prompt_lengths=LENGTHS,
        weights=mixture_weights,
    ),
    Family(
        "dots1",
        seed=223,
        config={
            **_GROUPS,
            "architectures": ["Dots1ForCausalLM"],
            "model_type": "dots1",
            "attention_bias": False,
            "max_window_layers": 4,
            "rope_theta": 10000000.0,
            "sliding_window": None,
        },
        eos=2,
        prompt_lengths=LENGTHS,
        weights=mixture_weights,
    ),
    Family(
        "solar-open",
        seed=224,
        config={
            **{key: value for key, value in _GROUPS.items() if key not in ("first_k_dense_replace", "intermediate_size")},
            "architectures": ["SolarOpenForCausalLM"],
            "model_type": "solar_open",
            "attention_bias": False,
            "n_group": 1,
            "partial_rotary_factor": 1.0,
            "rope_theta": 1000000.0,
            "topk_group": 1,
        },
        eos=2,
        prompt_lengths=LENGTHS,
        weights=mixture_weights,
    ),
    Family(
        "bailing",
        seed=225,
        config={
            **_NUMBERED,
            "architectures": ["BailingMoeV2ForCausalLM"],
            "model_type": "bailing_moe",
            "moe_router_enable_expert_bias": True,
            "norm_head": False,
            "partial_rotary_factor": 0.5,
            "rope_scaling": None,
            "rope_theta": 600000.0,
            "score_function": "sigmoid",
            "use_bias": False,
            "use_qk_norm": True,
            "use_qkv_bias": False,
        },
        twin={
            **_GROUPS,
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "attention_bias": False,
            "partial_rotary_factor": 0.5,
            "rope_theta": 600000.0,
            "use_qk_norm": True,
        },
        eos=2,
        prompt_lengths=LENGTHS,
        weights=mixture_weights,
        split=to_bailing,
    ),
    Family(
        "qwen3vl-moe",
        seed=226,
        config={
            "architectures": ["Qwen3VLMoeForConditionalGeneration"],
            "model_type": "qwen3_vl_moe",
            "dtype": "bfloat16",
            "text_config": {
                **_EXPERTS,
                "attention_bias": False,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [1],
                "model_type": "qwen3_vl_moe_text",
                "norm_topk_prob": True,
                "num_experts": 4,
                "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
                "rope_theta": 5000000.0,
            },
            "tie_word_embeddings": False,
            "vision_config": {
                "deepstack_visual_indexes": [0],
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 16,
                "model_type": "qwen3_vl_moe",
                "num_heads": 2,
                "num_position_embeddings": 16,
                "out_hidden_size": 64,
                "patch_size": 4,
                "spatial_merge_size": 1,
            },
        },
        eos=2,
        prompt_lengths=LENGTHS,
        weights=mixture_weights,
    ),
]
