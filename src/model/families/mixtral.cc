#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Mistral's block with experts on every layer. They have intermediate_size.
void describe_mixtral(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.epsilon = 1e-5});
  layer.attention.rope = add_rope(fields, config, layer, {.theta = 1e6});
  layer.feed_forward.moe = read_local_experts(fields, layer);
  config.names = {.router = "block_sparse_moe.gate",
                  .experts = "block_sparse_moe.experts.",
                  .expert_gate = "w1",
                  .expert_up = "w3",
                  .expert_down = "w2"};
  const int32_t window = fields.integer_or("sliding_window", 0, 1, kMaxPosition);
  set_layers(fields, config, layer, window, read_layer_types(fields, config, [&](int32_t) { return window > 0; }));
}

}  // namespace millrace::model
