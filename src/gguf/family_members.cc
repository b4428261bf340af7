#include "gguf/family_members.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace millrace::gguf {
namespace {

constexpr int64_t kSoftmax = 1;
constexpr int64_t kSigmoid = 2;

/// Refuses experts whose scores are made otherwise. 0 stands for the family's own way.
void require_gating(ConfigMembers& members, int64_t wanted) {
  const auto gating = members.metadata().integer(members.key("expert_gating_func"), 0, 255);
  if (gating.value_or(0) != 0 && *gating != wanted)
    members.metadata().fail("{} is {}, wanted {} ({})", members.key("expert_gating_func"), *gating, wanted,
                            wanted == kSoftmax ? "softmax" : "sigmoid");
}

void write_counts(ConfigMembers& members, const char* count_member, const char* used_member = "num_experts_per_tok") {
  members.json().member(count_member, members.size("expert_count"));
  members.json().member(used_member, members.size("expert_used_count"));
}

void write_expert_width(ConfigMembers& members) {
  members.json().member("moe_intermediate_size", members.size("expert_feed_forward_length"));
}

/// Writes the numbers of layers that have no router.
void write_dense_layers(ConfigMembers& members) {
  JsonWriter& json = members.json();
  json.key("mlp_only_layers").begin_array();
  const int64_t count = std::min(members.layer_count(), kMaxLayers);
  for (int64_t layer = 0; layer < count; ++layer) {
    if (!members.has_in_layer(layer, "ffn_gate_inp.weight")) json.value(layer);
  }
  json.end_array();
}

/// Writes the window, which files may lack where there is a usual one, and which layers slide: by a list of flags or by
/// the distance of those that do not.
void write_pattern(ConfigMembers& members, int64_t usual, std::optional<int64_t> usual_window = {}) {
  JsonWriter& json = members.json();
  constexpr std::string_view kWindow = "attention.sliding_window";
  json.member("sliding_window",
              usual_window ? members.optional_size(kWindow).value_or(*usual_window) : members.size(kWindow));
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  const auto flags = members.integers(kPattern);
  const int64_t period = flags ? usual : members.optional_size(kPattern).value_or(usual);
  const auto count = static_cast<size_t>(std::min(members.layer_count(), kMaxLayers));
  if (flags && flags->size() < count)
    members.metadata().fail("{} has {} items, wanted one for each of {} layers", members.key(kPattern), flags->size(),
                            count);
  json.key("layer_types").begin_array();
  for (size_t layer = 0; layer < count; ++layer) {
    const bool slides = flags ? (*flags)[layer] != 0 : (static_cast<int64_t>(layer) + 1) % period != 0;
    json.value(slides ? "sliding_attention" : "full_attention");
  }
  json.end_array();
}

/// Writes what divides the scores of Gemma: the channels of a head, or of hidden_size per head in models of 27B, which
/// have a number of layers that no other has.
void write_gemma_scale(ConfigMembers& members, int64_t layers_of_27b) {
  const int64_t heads = members.layer_size("attention.head_count");
  const int64_t hidden = members.size("embedding_length");
  const int64_t head_dim = members.optional_size("attention.key_length").value_or(hidden / heads);
  members.json().member("hidden_activation", "gelu_pytorch_tanh");
  members.json().member("query_pre_attn_scalar", members.layer_count() == layers_of_27b ? hidden / heads : head_dim);
}

std::vector<float> read_vector(const Model& model, const char* name) {
  const Tensor* tensor = model.find(name);
  if (tensor == nullptr) return {};
  if (tensor->type.name != "F32" || tensor->shape.size() != 1)
    model.metadata().fail("tensor '{}' is {} [{}], wanted an F32 vector", name, tensor->type.name,
                          fmt::join(tensor->shape, ", "));
  std::vector<float> values(tensor->bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor->bytes.data(), values.size() * sizeof(float));
  return values;
}

void write_list(JsonWriter& json, const char* member, const std::vector<float>& values) {
  json.key(member).begin_array();
  for (const float value : values) json.value(value);
  json.end_array();
}

/// Writes the members of DeepSeek-V3's router.
void write_grouped_experts(ConfigMembers& members) {
  JsonWriter& json = members.json();
  write_counts(members, "n_routed_experts");
  write_expert_width(members);
  json.member("n_shared_experts", members.optional_size("expert_shared_count", 0).value_or(0));
  json.member("first_k_dense_replace", members.optional_size("leading_dense_block_count", 0).value_or(0));
  members.write_number("expert_weights_scale", "routed_scaling_factor");
  json.member("norm_topk_prob", members.flag("expert_weights_norm").value_or(false));
  json.member("n_group", members.optional_size("expert_group_count", 0).value_or(1));
  json.member("topk_group", members.optional_size("expert_group_used_count", 0).value_or(1));
}

void write_granite_scalars(ConfigMembers& members) {
  const int64_t heads = members.layer_size("attention.head_count");
  const float usual = 1.0f / std::sqrt(static_cast<float>(members.size("embedding_length") / heads));
  const float scale = members.number("attention.scale").value_or(0.0f);
  members.json().member("attention_multiplier", scale == 0.0f ? usual : scale);
  members.write_number("embedding_scale", "embedding_multiplier");
  members.write_number("residual_scale", "residual_multiplier");
  members.write_number("logit_scale", "logits_scaling");
}

/// Writes the members of LFM2. Layers without heads of keys are convolutions.
void write_lfm2_layers(ConfigMembers& members) {
  JsonWriter& json = members.json();
  const auto heads = members.integers("attention.head_count_kv");
  const auto count = static_cast<size_t>(members.layer_count());
  if (!heads || heads->size() != count)
    members.metadata().fail("{} is no list of {} numbers, wanted one for each layer",
                            members.key("attention.head_count_kv"), count);
  json.key("layer_types").begin_array();
  for (const int64_t each : *heads) json.value(each == 0 ? "conv" : "full_attention");
  json.end_array();
  json.member("conv_L_cache", members.size("shortconv.l_cache"));
  json.member("conv_bias", members.has_in_layers("shortconv.conv.bias"));
}

}  // namespace

bool has_experts(const Model& model) {
  const auto count = model.metadata().integer(fmt::format("{}.expert_count", model.architecture()), 0, INT32_MAX);
  return count.value_or(0) > 0;
}

bool has_window(const Model& model) {
  const Value* pattern =
      model.metadata().find(fmt::format("{}.attention.sliding_window_pattern", model.architecture()));
  if (pattern == nullptr) return false;
  const auto flags = pattern->integers();
  return !flags || std::ranges::find(*flags, 1) != flags->end();
}

bool has_sigmoid_scores(const Model& model) {
  return model.metadata().integer(fmt::format("{}.expert_gating_func", model.architecture()), 0, 255) == kSigmoid;
}

void write_mixtral(ConfigMembers& members) {
  require_gating(members, kSoftmax);
  write_counts(members, "num_local_experts");
}

void write_qwen3_moe(ConfigMembers& members) {
  require_gating(members, kSoftmax);
  write_counts(members, "num_experts");
  write_expert_width(members);
  members.json().member("norm_topk_prob", members.flag("expert_weights_norm").value_or(true));
  write_dense_layers(members);
}

/// The weights of experts are not normalised. Older files lack the widths of experts.
void write_qwen2_moe(ConfigMembers& members) {
  require_gating(members, kSoftmax);
  write_counts(members, "num_experts");
  const int64_t width = members.layer_size("feed_forward_length");
  JsonWriter& json = members.json();
  json.member("moe_intermediate_size",
              members.optional_size("expert_feed_forward_length").value_or(width / members.size("expert_used_count")));
  json.member("shared_expert_intermediate_size",
              members.optional_size("expert_shared_feed_forward_length").value_or(width));
  json.member("norm_topk_prob", members.flag("expert_weights_norm").value_or(false));
  write_dense_layers(members);
}

void write_gemma2(ConfigMembers& members) {
  constexpr int64_t kLayersOf27B = 46;
  write_gemma_scale(members, kLayersOf27B);
  members.json().member("attn_logit_softcapping", members.number("attn_logit_softcapping").value_or(50.0f));
  members.json().member("final_logit_softcapping", members.number("final_logit_softcapping").value_or(30.0f));
  constexpr int64_t kUsualWindow = 4096;
  write_pattern(members, 2, kUsualWindow);
}

void write_gemma3(ConfigMembers& members) {
  constexpr int64_t kLayersOf27B = 62;
  constexpr int64_t kUsualPattern = 6;
  write_gemma_scale(members, kLayersOf27B);
  members.write_number("final_logit_softcapping", "final_logit_softcapping");
  members.json().member("rope_local_base_freq", members.number("rope.freq_base_swa").value_or(1e4f));
  write_pattern(members, kUsualPattern);
}

void write_glm4_moe(ConfigMembers& members) {
  require_gating(members, kSigmoid);
  write_grouped_experts(members);
  members.json().member("use_qk_norm", members.has_in_layers("attn_q_norm.weight"));
}

void write_gpt_oss(ConfigMembers& members) {
  write_counts(members, "num_local_experts");
  write_pattern(members, 2);
}

void write_olmo3(ConfigMembers& members) {
  constexpr int64_t kUsualPattern = 4;
  write_pattern(members, kUsualPattern);
}

/// A window of 0, or one as long as the context, is none. Frequencies are divided by one of two lists.
void write_phi3(ConfigMembers& members) {
  JsonWriter& json = members.json();
  const int64_t window = members.optional_size("attention.sliding_window", 0).value_or(0);
  json.key("sliding_window");
  if (window > 0 && window < members.size("context_length")) {
    json.value(window);
  } else {
    json.null();
  }
  const std::vector<float> far = read_vector(members.model(), "rope_factors_long.weight");
  const std::vector<float> near = read_vector(members.model(), "rope_factors_short.weight");
  if (far.empty() && near.empty()) return;
  json.member("original_max_position_embeddings", members.size("rope.scaling.original_context_length"));
  json.key("rope_scaling").begin_object().member("type", "longrope");
  write_list(json, "long_factor", far);
  write_list(json, "short_factor", near);
  json.end_object();
}

void write_granite(ConfigMembers& members) {
  write_granite_scalars(members);
}

void write_granite_moe(ConfigMembers& members) {
  require_gating(members, kSoftmax);
  write_granite_scalars(members);
  write_counts(members, "num_local_experts");
}

void write_cohere2(ConfigMembers& members) {
  constexpr int64_t kUsualPattern = 4;
  const auto scale = members.number("logit_scale");
  if (!scale) members.metadata().fail("{} is missing, wanted a number", members.key("logit_scale"));
  members.json().member("logit_scale", *scale);
  write_pattern(members, kUsualPattern);
}

void write_ernie4_5_moe(ConfigMembers& members) {
  require_gating(members, kSoftmax);
  JsonWriter& json = members.json();
  write_counts(members, "moe_num_experts", "moe_k");
  write_expert_width(members);
  json.member("moe_num_shared_experts", members.optional_size("expert_shared_count", 0).value_or(0));
  // The converter computes it by a formula that is not its meaning; tensors have the width.
  (void)members.optional_size("expert_shared_feed_forward_length", 0);
  json.member("moe_layer_start_index", members.optional_size("leading_dense_block_count", 0).value_or(0));
  json.member("moe_layer_interval", members.optional_size("interleave_moe_layer_step").value_or(1));
  json.member("moe_use_aux_free", members.has_in_layers("exp_probs_b.bias"));
}

void write_minimax_m2(ConfigMembers& members) {
  require_gating(members, kSigmoid);
  write_counts(members, "num_local_experts");
  JsonWriter& json = members.json();
  json.member("use_routing_bias", members.has_in_layers("exp_probs_b.bias"));
  json.member("use_qk_norm", members.has_in_layers("attn_q_norm.weight"));
}

void write_lfm2(ConfigMembers& members) {
  write_lfm2_layers(members);
  members.json().member("block_auto_adjust_ff_dim", false);
}

void write_lfm2_moe(ConfigMembers& members) {
  require_gating(members, kSigmoid);
  write_lfm2_layers(members);
  write_counts(members, "num_experts");
  write_expert_width(members);
  JsonWriter& json = members.json();
  json.member("num_dense_layers", members.optional_size("leading_dense_block_count", 0).value_or(0));
  json.member("use_expert_bias", members.has_in_layers("exp_probs_b.bias"));
  json.member("norm_topk_prob", members.flag("expert_weights_norm").value_or(true));
  members.write_number("expert_weights_scale", "routed_scaling_factor");
}

/// The lengths of whole heads have keys of their own, since those of all families are of latents. Files from before
/// them have the whole heads there.
void write_deepseek(ConfigMembers& members) {
  JsonWriter& json = members.json();
  const int64_t rotated = members.size("rope.dimension_count");
  const auto own_key = members.optional_size("attention.key_length_mla");
  const int64_t key = own_key ? *own_key : members.size("attention.key_length");
  const auto own_value = members.optional_size("attention.value_length_mla");
  const int64_t value = own_value ? *own_value : members.size("attention.value_length");
  if (key <= rotated)
    members.metadata().fail("heads have {} channels and {} is {}, wanted fewer rotated ones", key,
                            members.key("rope.dimension_count"), rotated);
  json.member("qk_rope_head_dim", rotated).member("qk_nope_head_dim", key - rotated).member("v_head_dim", value);
  json.member("kv_lora_rank", members.size("attention.kv_lora_rank")).key("q_lora_rank");
  if (const auto rank = members.optional_size("attention.q_lora_rank", 0); rank.value_or(0) > 0) {
    json.value(*rank);
  } else {
    json.null();
  }
  const bool is_sigmoid = has_sigmoid_scores(members.model());
  json.member("scoring_func", is_sigmoid ? "sigmoid" : "softmax");
  write_grouped_experts(members);
  const bool has_groups = members.optional_size("expert_group_count", 0).value_or(1) > 1;
  json.member("topk_method", is_sigmoid ? "noaux_tc" : (has_groups ? "group_limited_greedy" : "greedy"));
}

}  // namespace millrace::gguf
