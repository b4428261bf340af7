#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

float read_multiplier(FieldReader& fields, const char* key) {
  return static_cast<float>(fields.number_or(key, 1.0, 1e-6, 1e6));
}

}  // namespace

/// Llama's block with four scalars: x = embedding_multiplier · embed(t); the scores are q·k · attention_multiplier; a
/// block adds residual_multiplier times its output; logits are divided by logits_scaling.
void describe_granite(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.attention.rope = add_rope(fields, config, layer);
  layer.attention.scale = read_multiplier(fields, "attention_multiplier");
  layer.residual_multiplier = read_multiplier(fields, "residual_multiplier");
  config.embedding_scale = read_multiplier(fields, "embedding_multiplier");
  config.logit_scale = 1.0f / read_multiplier(fields, "logits_scaling");
  config.layers.assign(config.layers.size(), layer);
}

}  // namespace millrace::model
