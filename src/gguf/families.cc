#include "gguf/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "gguf/family_members.h"

namespace millrace::gguf {
namespace {

constexpr std::array kMixtralParts = {std::string_view("w1"), std::string_view("w3"), std::string_view("w2")};

constexpr std::array kGemmaTensors = {TensorRule{"post_attention_norm", "post_attention_layernorm"},
                                      TensorRule{"ffn_norm", "pre_feedforward_layernorm"},
                                      TensorRule{"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr std::array kGlm4Tensors = {
    TensorRule{"post_attention_norm", "post_self_attn_layernorm"}, TensorRule{"ffn_norm", "post_attention_layernorm"},
    TensorRule{"post_ffw_norm", "post_mlp_layernorm"}, TensorRule{"ffn_up", "mlp.gate_up_proj"}};
constexpr std::array kOlmoTensors = {TensorRule{"post_attention_norm", "post_attention_layernorm"},
                                     TensorRule{"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr std::array kPhi3Tensors = {TensorRule{"attn_qkv", "self_attn.qkv_proj"},
                                     TensorRule{"ffn_up", "mlp.gate_up_proj"}};
constexpr std::array kQwen2MoeTensors = {TensorRule{"ffn_gate_inp_shexp", "mlp.shared_expert_gate", TensorForm::kRow}};
/// The norm before the feed-forward block has the name of what it follows.
constexpr std::array kPostAttentionTensors = {
    TensorRule{"post_attention_norm", "post_attention_layernorm"},
    TensorRule{"exp_probs_b", "mlp.gate.e_score_correction_bias", TensorForm::kSame, false}};
constexpr std::array kGptOssTensors = {TensorRule{"post_attention_norm", "post_attention_layernorm"},
                                       TensorRule{"attn_sinks", "self_attn.sinks", TensorForm::kSame, false}};
constexpr std::array kErnieTensors = {
    TensorRule{"exp_probs_b", "mlp.moe_statics.e_score_correction_bias", TensorForm::kRow, false}};
constexpr std::array kMiniMaxTensors = {
    TensorRule{"exp_probs_b", "block_sparse_moe.e_score_correction_bias", TensorForm::kSame, false}};
constexpr std::array kLatentTensors = {
    TensorRule{"attn_q_a", "self_attn.q_a_proj"},
    TensorRule{"attn_q_a_norm", "self_attn.q_a_layernorm"},
    TensorRule{"attn_q_b", "self_attn.q_b_proj"},
    TensorRule{"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    TensorRule{"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    TensorRule{"attn_kv_b", "self_attn.kv_b_proj"},
    TensorRule{"exp_probs_b", "mlp.gate.e_score_correction_bias", TensorForm::kSame, false}};
constexpr std::array kLfm2Tensors = {TensorRule{"attn_norm", "operator_norm"},
                                     TensorRule{"attn_q_norm", "self_attn.q_layernorm"},
                                     TensorRule{"attn_k_norm", "self_attn.k_layernorm"},
                                     TensorRule{"attn_output", "self_attn.out_proj"},
                                     TensorRule{"shortconv.in_proj", "conv.in_proj"},
                                     TensorRule{"shortconv.conv", "conv.conv", TensorForm::kPlane},
                                     TensorRule{"shortconv.out_proj", "conv.out_proj"},
                                     TensorRule{"ffn_norm", "ffn_norm"},
                                     TensorRule{"ffn_gate", "feed_forward.w1"},
                                     TensorRule{"ffn_up", "feed_forward.w3"},
                                     TensorRule{"ffn_down", "feed_forward.w2"},
                                     TensorRule{"exp_probs_b", "feed_forward.expert_bias", TensorForm::kSame, false}};

/// Mistral's models are stored as Llama's, and so are Mixtral's, which have experts.
constexpr Family kFamilies[] = {
    {.name = "llama",
     .architecture = "MixtralForCausalLM",
     .applies = has_experts,
     .write_members = write_mixtral,
     .pairs_rows = true,
     .is_moe = true,
     .router = "block_sparse_moe.gate",
     .experts = "block_sparse_moe.experts",
     .expert_parts = kMixtralParts},
    {.name = "llama", .architecture = "LlamaForCausalLM", .pairs_rows = true},
    {.name = "qwen2", .architecture = "Qwen2ForCausalLM"},
    {.name = "qwen3", .architecture = "Qwen3ForCausalLM"},
    {.name = "qwen2moe",
     .architecture = "Qwen2MoeForCausalLM",
     .write_members = write_qwen2_moe,
     .tensors = kQwen2MoeTensors,
     .is_moe = true,
     .shared_expert = "mlp.shared_expert"},
    {.name = "qwen3moe", .architecture = "Qwen3MoeForCausalLM", .write_members = write_qwen3_moe, .is_moe = true},
    {.name = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .write_members = write_gemma2,
     .tensors = kGemmaTensors,
     .stores_norms_plus_1 = true,
     .has_windows = true},
    {.name = "gemma3",
     .architecture = "Gemma3ForCausalLM",
     .write_members = write_gemma3,
     .tensors = kGemmaTensors,
     .stores_norms_plus_1 = true,
     .has_windows = true},
    {.name = "glm4", .architecture = "Glm4ForCausalLM", .tensors = kGlm4Tensors, .rotates_part = true},
    {.name = "glm4moe",
     .architecture = "Glm4MoeForCausalLM",
     .write_members = write_glm4_moe,
     .tensors = kPostAttentionTensors,
     .rotates_part = true,
     .is_moe = true},
    {.name = "gpt-oss",
     .architecture = "GptOssForCausalLM",
     .write_members = write_gpt_oss,
     .tensors = kGptOssTensors,
     .has_windows = true,
     .truncates_yarn = false,
     .is_moe = true,
     .has_expert_width_alone = true,
     .router = "mlp.router"},
    {.name = "olmo2",
     .architecture = "Olmo3ForCausalLM",
     .applies = has_window,
     .write_members = write_olmo3,
     .tensors = kOlmoTensors,
     .has_windows = true,
     .has_attention_factor = true},
    {.name = "olmo2", .architecture = "Olmo2ForCausalLM", .tensors = kOlmoTensors},
    {.name = "phi3",
     .architecture = "Phi3ForCausalLM",
     .write_members = write_phi3,
     .tensors = kPhi3Tensors,
     .rotates_part = true,
     .has_windows = true,
     .has_longrope = true},
    {.name = "granite", .architecture = "GraniteForCausalLM", .write_members = write_granite, .pairs_rows = true},
    {.name = "granitemoe",
     .architecture = "GraniteMoeForCausalLM",
     .write_members = write_granite_moe,
     .pairs_rows = true,
     .is_moe = true,
     .router = "block_sparse_moe.router.layer",
     .experts = "block_sparse_moe.experts"},
    {.name = "cohere2",
     .architecture = "Cohere2ForCausalLM",
     .write_members = write_cohere2,
     .epsilon_key = "attention.layer_norm_epsilon",
     .epsilon_member = "layer_norm_eps",
     .has_windows = true},
    {.name = "ernie4_5-moe",
     .architecture = "Ernie4_5_MoeForCausalLM",
     .write_members = write_ernie4_5_moe,
     .tensors = kErnieTensors,
     .is_moe = true},
    {.name = "minimax-m2",
     .architecture = "MiniMaxM2ForCausalLM",
     .write_members = write_minimax_m2,
     .tensors = kMiniMaxTensors,
     .rotates_part = true,
     .is_moe = true,
     .has_expert_width_alone = true,
     .router = "block_sparse_moe.gate",
     .experts = "block_sparse_moe.experts",
     .expert_parts = kMixtralParts},
    {.name = "lfm2",
     .architecture = "Lfm2ForCausalLM",
     .write_members = write_lfm2,
     .tensors = kLfm2Tensors,
     .final_norm = "model.embedding_norm.weight",
     .epsilon_member = "norm_eps",
     .has_recurrent_layers = true},
    {.name = "lfm2moe",
     .architecture = "Lfm2MoeForCausalLM",
     .write_members = write_lfm2_moe,
     .tensors = kLfm2Tensors,
     .final_norm = "model.embedding_norm.weight",
     .epsilon_member = "norm_eps",
     .has_recurrent_layers = true,
     .is_moe = true,
     .router = "feed_forward.gate",
     .experts = "feed_forward.experts",
     .expert_parts = kMixtralParts},
    {.name = "deepseek2",
     .architecture = "DeepseekV3ForCausalLM",
     .applies = has_sigmoid_scores,
     .write_members = write_deepseek,
     .tensors = kLatentTensors,
     .has_latents = true,
     .is_moe = true},
    {.name = "deepseek2",
     .architecture = "DeepseekV2ForCausalLM",
     .write_members = write_deepseek,
     .tensors = kLatentTensors,
     .has_latents = true,
     .is_moe = true},
};

}  // namespace

const Family& family_of(const Model& model) {
  const std::string_view name = model.architecture();
  const auto fits = [&](const Family& family) {
    return family.name == name && (family.applies == nullptr || family.applies(model));
  };
  const auto* const found = std::ranges::find_if(kFamilies, fits);
  if (found == std::end(kFamilies))
    model.metadata().fail("general.architecture '{}' is not known, wanted one of {}", name,
                          fmt::join(architecture_names(), ", "));
  return *found;
}

std::span<const std::string_view> architecture_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Family& family : kFamilies) {
      if (all.empty() || all.back() != family.name) all.push_back(family.name);
    }
    return all;
  }();
  return names;
}

}  // namespace millrace::gguf
