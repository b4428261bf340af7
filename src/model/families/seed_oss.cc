#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Llama's block with biases on q, k and v, and one of o_proj of its own.
void describe_seed_oss(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.head_dim = 128});
  layer.attention.qkv_bias = fields.flag_or("attention_bias", true);
  layer.attention.output_bias = fields.flag_or("attention_out_bias", false);
  layer.attention.rope = add_rope(fields, config, layer);
  config.layers.assign(config.layers.size(), layer);
}

}  // namespace millrace::model
