#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

float read_multiplier(FieldReader& fields, const char* key) {
  return static_cast<float>(fields.number_or(key, 1.0, 1e-6, 1e6));
}

LayerConfig read_granite_block(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.attention.rope = add_rope(fields, config, layer);
  layer.attention.scale = read_multiplier(fields, "attention_multiplier");
  layer.residual_multiplier = read_multiplier(fields, "residual_multiplier");
  config.embedding_scale = read_multiplier(fields, "embedding_multiplier");
  config.logit_scale = 1.0f / read_multiplier(fields, "logits_scaling");
  return layer;
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
  config.names = {.router = "block_sparse_moe.router.layer",
                  .experts = "block_sparse_moe.experts.",
                  .expert_storage = ExpertStorage::kRows,
                  .fused_experts_gate_up = "block_sparse_moe.input_linear.weight",
                  .fused_experts_down = "block_sparse_moe.output_linear.weight"};
  config.layers.assign(config.layers.size(), layer);
}

}  // namespace millrace::model
