#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

/// Reads n = LayerNorm(x); x += Attention(n) + F(n), with scaled logits. Rotations are of neighbouring pairs.
LayerConfig read_cohere_block(FieldReader& fields, ModelConfig& config) {
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
  return layer;
}

}  // namespace

/// All layers see everything and rotate. Those of Command R+ normalise each head of q and k.
void describe_cohere(FieldReader& fields, ModelConfig& config) {
  LayerConfig layer = read_cohere_block(fields, config);
  // The context that the models were trained for is under another name.
  config.max_position = fields.integer_or("model_max_length", config.max_position, 1, kMaxPosition);
  if (fields.flag_or("use_qk_norm", false)) layer.attention.qk_norm = QkNorm::kLayerPerHead;
  layer.attention.rope = add_rope(fields, config, layer, {.theta = 500000.0});
  config.ropes.back().interleaved = true;
  config.layers.assign(config.layers.size(), layer);
}

/// Three layers of four slide and rotate; the fourth sees everything and rotates nothing.
void describe_cohere2(FieldReader& fields, ModelConfig& config) {
  const LayerConfig layer = read_cohere_block(fields, config);
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
