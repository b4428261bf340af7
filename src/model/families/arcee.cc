#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Llama's block with F(x) = Wdown · max(Wup·x, 0)².
void describe_arcee(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "relu2");
  LayerConfig layer = read_block(fields, config, {.epsilon = 1e-5, .allows_mlp_bias = true});
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.feed_forward.gated = false;
  layer.feed_forward.activation = MlpActivation::kReluSquared;
  layer.attention.rope = add_rope(fields, config, layer);
  config.layers.assign(config.layers.size(), layer);
}

}  // namespace millrace::model
