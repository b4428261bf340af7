#include <algorithm>

#include "model/families/block.h"
#include "model/families/families.h"
#include "model/families/mamba.h"

namespace millrace::model {
namespace {

LayerConfig read_granite_block(FieldReader& fields, ModelConfig& config, bool rotates = true) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  if (rotates) layer.attention.rope = add_rope(fields, config, layer);
  layer.attention.scale = read_multiplier(fields, "attention_multiplier");
  layer.residual_multiplier = read_multiplier(fields, "residual_multiplier");
  config.embedding_scale = read_multiplier(fields, "embedding_multiplier");
  config.logit_scale = 1.0f / read_multiplier(fields, "logits_scaling");
  return layer;
}

TensorNames granite_expert_names() {
  return {.router = "block_sparse_moe.router.layer",
          .experts = "block_sparse_moe.experts.",
          .expert_storage = ExpertStorage::kRows,
          .fused_experts_gate_up = "block_sparse_moe.input_linear.weight",
          .fused_experts_down = "block_sparse_moe.output_linear.weight"};
}

MambaConfig read_granite_mamba(FieldReader& fields, const ModelConfig& config) {
  constexpr int32_t kMaxExpand = 64;
  MambaConfig mamba;
  mamba.head_count = fields.integer_or("mamba_n_heads", 128, 1, kMaxHeadCount);
  const int32_t width = fields.integer_or("mamba_expand", 2, 1, kMaxExpand) * config.hidden_size;
  if (width % mamba.head_count != 0)
    fields.fail_with("mamba_expand · hidden_size {} is not a multiple of mamba_n_heads {}", width, mamba.head_count);
  mamba.head_dim = std::max(1, width / mamba.head_count);
  mamba.group_count = fields.integer_or("mamba_n_groups", 1, 1, kMaxHeadCount);
  mamba.state_dim = fields.integer_or("mamba_d_state", 256, 1, kMaxMambaState);
  mamba.conv_width = read_conv_width(fields, "mamba_d_conv", 4);
  mamba.conv_bias = fields.flag_or("mamba_conv_bias", true);
  mamba.input_bias = mamba.output_bias = fields.flag_or("mamba_proj_bias", false);
  finish_mamba(fields, "mamba_n_heads", "mamba_n_groups", mamba);
  return mamba;
}

}  // namespace

/// Llama's block with four scalars: x = embedding_multiplier · embed(t); the scores are q·k · attention_multiplier; a
/// block adds residual_multiplier times its output; logits are divided by logits_scaling.
void describe_granite(FieldReader& fields, ModelConfig& config) {
  const LayerConfig layer = read_granite_block(fields, config);
  config.layers.assign(config.layers.size(), layer);
}

/// Granite's block with experts on every layer. The weights of a token's experts are a softmax over their logits alone.
void describe_granite_moe(FieldReader& fields, ModelConfig& config) {
  LayerConfig layer = read_granite_block(fields, config);
  layer.feed_forward.moe = read_local_experts(fields, layer);
  config.names = granite_expert_names();
  config.layers.assign(config.layers.size(), layer);
}

/// Granite's block with Mamba-2 in most layers and attention in the others. Every layer has a feed-forward block, and
/// experts besides it if the model has some.
void describe_granite_moe_hybrid(FieldReader& fields, ModelConfig& config) {
  const std::string positions = fields.text_or("position_embedding_type", "nope");
  if (positions != "rope" && positions != "nope")
    fields.fail_with("position_embedding_type '{}' is not supported, wanted 'rope' or 'nope'", positions);
  LayerConfig layer = read_granite_block(fields, config, positions == "rope");
  const int32_t shared = fields.integer_or("shared_intermediate_size", 1024, 1, kMaxIntermediate);
  const int32_t experts = fields.integer_or("num_local_experts", 8, 0, kMaxExpertCount);
  if (experts > 0) {
    layer.feed_forward.moe = read_local_experts(fields, layer, experts);
    layer.feed_forward.moe->shared = {.width = shared};
    config.names = granite_expert_names();
  }
  layer.feed_forward.width = shared;
  config.names.fused_gate_up = config.names.fused_shared_gate_up = "shared_mlp.input_linear";
  config.names.down = config.names.shared_down = "shared_mlp.output_linear";
  set_mamba_names(config.names);
  set_recurrent_layers(
      config, layer, read_granite_mamba(fields, config),
      read_recurrent_layers(fields, config, {"mamba", "linear_attention"}, [](int32_t) { return true; }));
}

}  // namespace millrace::model
