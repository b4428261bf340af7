#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "gguf/family_members.h"
#include "gguf/member_writers.h"

/// The members of families with recurrent layers, and of Granite, whose newest models have some.
namespace millrace::gguf {
namespace {

constexpr std::string_view kConvolution = "ssm_conv1d.weight";

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

/// The sizes of Mamba-2, by the keys that all families have.
struct MambaSizes {
  int64_t heads = 0;
  int64_t inner = 0;
  int64_t groups = 0;
  int64_t state = 0;
  int64_t conv = 0;
};

MambaSizes mamba_sizes(ConfigMembers& members) {
  const MambaSizes sizes{.heads = members.size("ssm.time_step_rank"),
                         .inner = members.size("ssm.inner_size"),
                         .groups = members.size("ssm.group_count"),
                         .state = members.size("ssm.state_size"),
                         .conv = members.size("ssm.conv_kernel")};
  if (sizes.inner % sizes.heads != 0)
    members.metadata().fail("{} {} is not a multiple of {} {}", members.key("ssm.inner_size"), sizes.inner,
                            members.key("ssm.time_step_rank"), sizes.heads);
  return sizes;
}

/// Writes Mamba-2 as most families name it.
MambaSizes write_mamba(ConfigMembers& members) {
  const MambaSizes sizes = mamba_sizes(members);
  JsonWriter& json = members.json();
  json.member("mamba_n_heads", sizes.heads).member("mamba_d_head", sizes.inner / sizes.heads);
  json.member("mamba_n_groups", sizes.groups).member("mamba_d_state", sizes.state).member("mamba_d_conv", sizes.conv);
  json.member("mamba_conv_bias", members.has_in_layers("ssm_conv1d.bias"));
  return sizes;
}

/// Writes what layers of Qwen3-Next and Qwen3.5 have, which differ in their tensors.
void write_delta_net(ConfigMembers& members) {
  const MambaSizes sizes = mamba_sizes(members);
  JsonWriter& json = members.json();
  json.member("linear_num_key_heads", sizes.groups).member("linear_num_value_heads", sizes.heads);
  json.member("linear_key_head_dim", sizes.state).member("linear_value_head_dim", sizes.inner / sizes.heads);
  json.member("linear_conv_kernel_dim", sizes.conv);
  (void)members.optional_size("full_attention_interval");
  (void)members.integers("rope.dimension_sections");  // equal for texts
  write_layer_types(members, kConvolution, "linear_attention", "full_attention");
}

void write_qwen_hybrid_experts(ConfigMembers& members) {
  require_gating(members, kSoftmax);
  write_counts(members, "num_experts");
  write_expert_width(members);
  JsonWriter& json = members.json();
  json.member("shared_expert_intermediate_size", members.size("expert_shared_feed_forward_length"));
  const auto own_norm = members.flag("norm_top_k_prob");
  json.member("norm_topk_prob", own_norm ? *own_norm : members.flag("expert_weights_norm").value_or(true));
}

/// Returns the type of a layer of Nemotron-H, each of which has one part.
std::string_view nemotron_part(const ConfigMembers& members, int64_t layer) {
  if (members.has_in_layer(layer, kConvolution)) return "mamba";
  if (members.has_in_layer(layer, "attn_q.weight") || members.has_in_layer(layer, "attn_qkv.weight"))
    return "attention";
  return members.has_in_layer(layer, "ffn_gate_inp.weight") ? "moe" : "mlp";
}

}  // namespace

void write_granite(ConfigMembers& members) {
  write_granite_scalars(members);
}

void write_granite_moe(ConfigMembers& members) {
  require_gating(members, kSoftmax);
  write_granite_scalars(members);
  write_counts(members, "num_local_experts");
}

/// The layers that attend do not rotate, unless the file says so. Without experts, the block has the width of the
/// shared one.
void write_granite_hybrid(ConfigMembers& members) {
  write_granite_scalars(members);
  JsonWriter& json = members.json();
  const bool rotates = members.flag("rope.scaling.finetuned").value_or(true);
  json.member("position_embedding_type", rotates ? "rope" : "nope");
  write_layer_types(members, kConvolution, "mamba", "attention");
  const MambaSizes sizes = write_mamba(members);
  const int64_t hidden = members.size("embedding_length");
  if (sizes.inner % hidden != 0)
    members.metadata().fail("{} is {}, wanted a multiple of {} {}", members.key("ssm.inner_size"), sizes.inner,
                            members.key("embedding_length"), hidden);
  json.member("mamba_expand", sizes.inner / hidden).member("mamba_proj_bias", members.has_in_layers("ssm_in.bias"));
  json.member("shared_intermediate_size", members.size("expert_shared_feed_forward_length"));
  if (members.has_in_layers("ffn_gate_inp.weight")) {
    require_gating(members, kSoftmax);
    write_counts(members, "num_local_experts");
  } else {
    json.member("num_local_experts", 0).member("num_experts_per_tok", 0);
  }
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
  json.member("use_expert_bias", has_choice_bias(members.model()));
  json.member("norm_topk_prob", members.flag("expert_weights_norm").value_or(true));
  members.write_number("expert_weights_scale", "routed_scaling_factor");
}

void write_qwen3_next(ConfigMembers& members) {
  write_delta_net(members);
  write_qwen_hybrid_experts(members);
  write_dense_layers(members);
}

void write_qwen3_5(ConfigMembers& members) {
  write_delta_net(members);
}

void write_qwen3_5_moe(ConfigMembers& members) {
  write_delta_net(members);
  write_qwen_hybrid_experts(members);
}

void write_nemotron_h(ConfigMembers& members) {
  JsonWriter& json = members.json();
  json.key("layers_block_type").begin_array();
  const int64_t count = std::min(members.layer_count(), kMaxLayers);
  for (int64_t layer = 0; layer < count; ++layer) json.value(nemotron_part(members, layer));
  json.end_array();
  const MambaSizes sizes = mamba_sizes(members);
  json.member("mamba_num_heads", sizes.heads).member("mamba_head_dim", sizes.inner / sizes.heads);
  json.member("n_groups", sizes.groups).member("ssm_state_size", sizes.state).member("conv_kernel", sizes.conv);
  json.member("use_conv_bias", members.has_in_layers("ssm_conv1d.bias"));
  json.member("use_bias", members.has_in_layers("ssm_in.bias"));
  if (!members.has_in_layers("ffn_gate_inp.weight")) return;
  require_gating(members, kSigmoid);
  write_grouped_experts(members);
  json.member("moe_shared_expert_intermediate_size", members.size("expert_shared_feed_forward_length"));
  if (const auto latent = members.optional_size("moe_latent_size", 0); latent.value_or(0) > 0)
    json.member("moe_latent_size", *latent);
}

/// Weights are products with the multipliers, so that all of these are 1. A tied head would have that of the embedding.
void write_falcon_h1(ConfigMembers& members) {
  if (members.model().find("output.weight") == nullptr)
    members.metadata().fail("tensor 'output.weight' is missing, wanted a head: the embedding has another multiplier");
  // Converters multiply these by attention_in_multiplier too, which files do not have.
  for (const std::string_view bias : {"attn_q.bias", "attn_qkv.bias"}) {
    if (members.has_in_layers(bias))
      members.metadata().fail("tensor '{}' is not supported in falcon-h1, wanted a model without attention_bias", bias);
  }
  const MambaSizes sizes = write_mamba(members);
  JsonWriter& json = members.json();
  json.member("mamba_d_ssm", sizes.inner).member("mamba_norm_before_gate", false);
  json.member("mamba_rms_norm", members.has_in_layers("ssm_norm.weight"));
}

}  // namespace millrace::gguf
