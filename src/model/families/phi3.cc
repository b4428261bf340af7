#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Llama's block with fused tensors. Later models rotate a part of each head and scale frequencies by longrope.
void describe_phi3(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.epsilon = 1e-5});
  layer.attention.rope = add_rope(fields, config, layer, {.partial = 1.0, .has_longrope = true});
  layer.attention.window = fields.integer_or("sliding_window", 0, 1, kMaxPosition);
  config.layers.assign(config.layers.size(), layer);
  config.names.fused_qkv = "self_attn.qkv_proj";
  config.names.fused_gate_up = "mlp.gate_up_proj";
}

}  // namespace millrace::model
