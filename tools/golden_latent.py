"""Tiny checkpoints of the families with multi-head latent attention, and what transformers computes with them."""

import numpy as np
import torch

from golden_families import Family, random_weights

BIAS_STD = 0.1

_LATENT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "use_cache": True,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}
_YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}
# Few of a prompt's tokens are chosen. With as many heads no score is zero by chance, which would leave a tie.
_INDEXER = {"index_head_dim": 32, "index_n_heads": 32, "index_topk": 96}
# Rounding to bf16 or 8 bits now and then turns the choice between two tokens that are nearly tied.
_CHOICE_TOLERANCE = {"bf16_max": 1.0, "bf16_rms": 0.15, "bf16_kl": 0.05, "w8_factor": 3.0}
_V2 = {
    **_LATENT,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "rope_theta": 10000.0,
    "rope_scaling": _YARN,
    "torch_dtype": "bfloat16",
}

def latent_weights(family: Family) -> dict[str, torch.Tensor]:
    """Random weights, with the f32 correction of each router that chooses by one, which transformers keeps as a buffer."""
    weights = random_weights(family)
    if family.config["topk_method"] != "noaux_tc":
        return weights
    rng = np.random.default_rng(family.seed + 1)
    for layer in range(family.config["first_k_dense_replace"], family.config["num_hidden_layers"]):
        bias = BIAS_STD * rng.standard_normal(family.config["n_routed_experts"], dtype=np.float32)
        weights[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"] = torch.from_numpy(bias)
    return weights


LATENT_FAMILIES = [
    Family(
        "deepseek-v2-lite",
        seed=121,
        config={**_V2, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0},
        eos=2,
        weights=latent_weights,
        prompt_lengths=(7, 100),
    ),
    Family(
        "deepseek-v2",
        seed=122,
        config={
            **_V2,
            "q_lora_rank": 48,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 4.0,
        },
        eos=2,
        weights=latent_weights,
    ),
    Family(
        "deepseek-v3",
        seed=123,
        config={
            **_LATENT,
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "q_lora_rank": 48,
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "num_nextn_predict_layers": 1,
            "rope_theta": 10000.0,
            "rope_scaling": _YARN,
            "torch_dtype": "bfloat16",
        },
        eos=[2, 5],
        weights=latent_weights,
    ),
    # Their indexers choose all tokens of these prompts and continuations.
    Family(
        "deepseek-v32",
        seed=125,
        config={
            **_LATENT,
            "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32",
            "q_lora_rank": 48,
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "index_head_dim": 32,
            "index_n_heads": 32,
            "index_topk": 160,
            "rope_theta": 10000.0,
            "rope_scaling": _YARN,
            "torch_dtype": "bfloat16",
        },
        eos=[2, 5],
        weights=latent_weights,
        prompt_lengths=(7, 100),
    ),
    Family(
        "glm-moe-dsa",
        seed=126,
        config={
            **_LATENT,
            "architectures": ["GlmMoeDsaForCausalLM"],
            "model_type": "glm_moe_dsa",
            "rms_norm_eps": 1e-5,
            "q_lora_rank": 48,
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "index_head_dim": 32,
            "index_n_heads": 32,
            "index_topk": 160,
            "indexer_types": ["full", "full", "shared", "full"],
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "dtype": "bfloat16",
        },
        eos=[2, 5],
        weights=latent_weights,
        prompt_lengths=(7, 100),
    ),
    Family(
        "deepseek-v32-sparse",
        seed=207,
        config={
            **_LATENT,
            "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32",
            "q_lora_rank": 48,
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            **_INDEXER,
            "rope_theta": 10000.0,
            "rope_scaling": _YARN,
            "torch_dtype": "bfloat16",
        },
        eos=[2, 5],
        weights=latent_weights,
        prompt_lengths=(7, 100, 190),
        tolerance=_CHOICE_TOLERANCE,
    ),
    Family(
        "glm-moe-dsa-sparse",
        seed=127,
        config={
            **_LATENT,
            "architectures": ["GlmMoeDsaForCausalLM"],
            "model_type": "glm_moe_dsa",
            "rms_norm_eps": 1e-5,
            "q_lora_rank": 48,
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            **_INDEXER,
            "indexer_types": ["full", "shared", "full", "full"],
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "dtype": "bfloat16",
        },
        eos=[2, 5],
        weights=latent_weights,
        prompt_lengths=(7, 100, 190),
        tolerance=_CHOICE_TOLERANCE,
    ),
    Family(
        "glm4-moe-lite",
        seed=124,
        config={
            **_LATENT,
            "architectures": ["Glm4MoeLiteForCausalLM"],
            "model_type": "glm4_moe_lite",
            "rms_norm_eps": 1e-5,
            "attention_bias": True,
            "q_lora_rank": 48,
            "n_shared_experts": 1,
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.8,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "dtype": "bfloat16",
        },
        eos=2,
        weights=latent_weights,
        prompt_lengths=(7, 100),
    ),
]
