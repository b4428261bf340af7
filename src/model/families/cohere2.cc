#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// n = LayerNorm(x); x += Attention(n) + F(n). Three layers of four slide and rotate neighbouring pairs; the fourth
/// sees everything and rotates nothing. Logits are scaled.
void describe_cohere2(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  const BlockDefaults defaults{.vocab_size = 256000,
                               .max_position = 8192,
                               .epsilon_key = "layer_norm_eps",
                               .epsilon = 1e-5,
                               .tied_embeddings = true};
  LayerConfig layer = read_block(fields, config, defaults);
  layer.parallel = true;
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  config.norm = NormKind::kLayer;
  config.logit_scale = static_cast<float>(fields.number_or("logit_scale", 0.0625, 1e-6, 1e6));
  const int32_t window = fields.integer_or("sliding_window", 4096, 1, kMaxPosition);
  const int32_t pattern = fields.integer_or("sliding_window_pattern", 4, 1, kMaxLayerCount);
  const std::vector<bool> slides =
      read_layer_types(fields, config, [pattern](int32_t index) { return (index + 1) % pattern != 0; });
  const int32_t rope = add_rope(fields, config, layer);
  config.ropes.back().interleaved = true;
  set_layers(fields, config, layer, window, slides);
  for (LayerConfig& each : config.layers) {
    if (each.attention.window > 0) each.attention.rope = rope;
  }
}

}  // namespace millrace::model
