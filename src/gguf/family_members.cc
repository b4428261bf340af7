#include "gguf/family_members.h"

#include <algorithm>

#include "gguf/member_writers.h"

namespace millrace::gguf {

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

bool has_temperature(const Model& model) {
  const auto scale = model.metadata().number(fmt::format("{}.attention.temperature_scale", model.architecture()));
  return scale.value_or(0.0) != 0.0;
}

bool has_sigmoid_scores(const Model& model) {
  const auto gating = model.metadata().integer(fmt::format("{}.expert_gating_func", model.architecture()), 0, 255);
  // Files of GLM-4.7-Flash lack the key. DeepSeek-V2 has no such correction.
  return gating.value_or(0) == 0 ? has_choice_bias(model) : *gating == kSigmoid;
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

void write_glm4_moe(ConfigMembers& members) {
  require_gating(members, kSigmoid);
  write_grouped_experts(members);
  (void)members.integers("rope.dimension_sections");  // equal for texts
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
  members.write_number("rope.scaling.attn_factor", "attention_factor");
  write_list(json, "long_factor", far);
  write_list(json, "short_factor", near);
  json.end_object();
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
  json.member("moe_use_aux_free", has_choice_bias(members.model()));
}

void write_minimax_m2(ConfigMembers& members) {
  require_gating(members, kSigmoid);
  write_counts(members, "num_local_experts");
  JsonWriter& json = members.json();
  json.member("use_routing_bias", has_choice_bias(members.model()));
  json.member("use_qk_norm", members.has_in_layers("attn_q_norm.weight"));
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

/// DeepSeek's block with an indexer of which tokens are seen.
void write_sparse_deepseek(ConfigMembers& members) {
  write_deepseek(members);
  JsonWriter& json = members.json();
  json.member("index_n_heads", members.size("attention.indexer.head_count"));
  json.member("index_head_dim", members.size("attention.indexer.key_length"));
  json.member("index_topk", members.size("attention.indexer.top_k"));
}

/// Layers without an indexer take the choice of the layer before. Files from before the list of flags leave it to the
/// tensors.
void write_glm_dsa(ConfigMembers& members) {
  write_sparse_deepseek(members);
  constexpr std::string_view kTypes = "attention.indexer.types";
  const auto flags = members.integers(kTypes);
  if (!flags && !members.has_in_layers("indexer.attn_k.weight")) return;  // short contexts need no indexers
  const int64_t count = std::min(members.layer_count(), kMaxLayers);
  if (flags && std::ssize(*flags) < count)
    members.metadata().fail("{} has {} items, wanted one for each of {} layers", members.key(kTypes), flags->size(),
                            count);
  JsonWriter& json = members.json();
  json.key("indexer_types").begin_array();
  for (int64_t layer = 0; layer < count; ++layer) {
    const bool is_full =
        flags ? (*flags)[static_cast<size_t>(layer)] != 0 : members.has_in_layer(layer, "indexer.attn_k.weight");
    json.value(is_full ? "full" : "shared");
  }
  json.end_array();
}

/// The query grows with the logarithm of its position beyond the original context.
void write_ministral3(ConfigMembers& members) {
  JsonWriter& json = members.json();
  json.key("llama_4_scaling").begin_object();
  json.member("beta", members.number("attention.temperature_scale").value_or(0.0f));
  json.member("original_max_position_embeddings", members.size("rope.scaling.original_context_length")).end_object();
}

/// Files leave out the chunks, the scaling of queries and the norm of q and k, which the larger model lacks. A window
/// of 0 says that all layers rotate and see all tokens.
void write_llama4(ConfigMembers& members) {
  constexpr int64_t kExpertsWithoutNorm = 128;
  constexpr int64_t kChunk = 8192;
  JsonWriter& json = members.json();
  write_counts(members, "num_local_experts");
  json.member("intermediate_size_mlp", members.size("feed_forward_length"));
  json.member("interleave_moe_layer_step", members.optional_size("interleave_moe_layer_step").value_or(1));
  json.member("use_qk_norm", members.size("expert_count") != kExpertsWithoutNorm);
  const auto window = members.optional_size("attention.sliding_window", 0);
  if (window == 0) {
    json.key("attention_chunk_size").null().member("no_rope_layer_interval", kMaxLayers);
  } else {
    json.member("attention_chunk_size", kChunk).member("floor_scale", kChunk);
  }
}

void write_hy_v3(ConfigMembers& members) {
  require_gating(members, kSigmoid);
  write_counts(members, "num_experts");
  write_expert_width(members);
  JsonWriter& json = members.json();
  const int64_t width = members.size("expert_feed_forward_length");
  const int64_t shared = members.optional_size("expert_shared_feed_forward_length", 0).value_or(0);
  if (shared % width != 0)
    members.metadata().fail("{} is {}, wanted a multiple of {} {}", members.key("expert_shared_feed_forward_length"),
                            shared, members.key("expert_feed_forward_length"), width);
  json.member("num_shared_experts", shared / width);
  int64_t dense = 0;
  const int64_t count = std::min(members.layer_count(), kMaxLayers);
  while (dense < count && !members.has_in_layer(dense, "ffn_gate_inp.weight")) ++dense;
  json.member("first_k_dense_replace", dense);
  (void)members.optional_size("leading_dense_block_count", 0);
  json.member("moe_router_enable_expert_bias", has_choice_bias(members.model()));
  json.member("qk_norm", members.has_in_layers("attn_q_norm.weight"));
  json.member("route_norm", members.flag("expert_weights_norm").value_or(true));
  json.member("router_scaling_factor", members.number("expert_weights_scale").value_or(1.0f));
}

/// The embedding is scaled in all models that have files.
void write_afmoe(ConfigMembers& members) {
  constexpr int64_t kUsualPattern = 4;
  require_gating(members, kSigmoid);
  write_counts(members, "num_experts");
  write_expert_width(members);
  JsonWriter& json = members.json();
  json.member("mup_enabled", true);
  json.member("num_shared_experts", members.size("expert_shared_count"));
  json.member("num_dense_layers", members.optional_size("leading_dense_block_count", 0).value_or(0));
  json.member("route_norm", members.flag("expert_weights_norm").value_or(false));
  json.member("route_scale", members.number("expert_weights_scale").value_or(1.0f));
  write_pattern(members, kUsualPattern);
}

void write_bailing_moe(ConfigMembers& members) {
  require_gating(members, kSigmoid);
  write_grouped_experts(members, "num_experts", "num_shared_experts");
  (void)members.optional_size("expert_shared_feed_forward_length", 0);  // tensors have the width
  JsonWriter& json = members.json();
  json.member("moe_router_enable_expert_bias", has_choice_bias(members.model()));
  json.member("use_qk_norm", members.has_in_layers("attn_q_norm.weight"));
}

void write_dots1(ConfigMembers& members) {
  require_gating(members, kSigmoid);
  write_grouped_experts(members);
}

/// The smaller model has no windows.
void write_exaone4(ConfigMembers& members) {
  constexpr int64_t kUsualPattern = 4;
  if (members.optional_size("attention.sliding_window", 0).value_or(0) > 0)
    write_pattern(members, kUsualPattern);
  else
    members.json().key("sliding_window").null();
}

void write_exaone_moe(ConfigMembers& members) {
  constexpr int64_t kUsualPattern = 4;
  require_gating(members, kSigmoid);
  write_grouped_experts(members, "num_experts", "num_shared_experts");
  (void)members.optional_size("expert_shared_feed_forward_length", 0);  // tensors have the width
  write_pattern(members, kUsualPattern);
}

}  // namespace millrace::gguf
