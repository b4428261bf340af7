#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

/// x += rms(Wo·attention(rope(rms(Wqk·x), Wv·x))); x += rms(F(x)). The norms of q and k span all heads.
LayerConfig read_olmo_block(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.epsilon = 1e-5});
  layer.norms = {
      .before_attention = false, .after_attention = true, .before_feed_forward = false, .after_feed_forward = true};
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.attention.qk_norm = QkNorm::kAllHeads;
  config.names.attention_output_norm = "post_attention_layernorm";
  config.names.feed_forward_output_norm = "post_feedforward_layernorm";
  return layer;
}

}  // namespace

void describe_olmo2(FieldReader& fields, ModelConfig& config) {
  LayerConfig layer = read_olmo_block(fields, config);
  layer.attention.rope = add_rope(fields, config, layer);
  config.layers.assign(config.layers.size(), layer);
}

/// OLMo2's block. Three layers of four slide; only the fourth scales its frequencies.
void describe_olmo3(FieldReader& fields, ModelConfig& config) {
  LayerConfig layer = read_olmo_block(fields, config);
  const int32_t window = fields.integer_or("sliding_window", 4096, 1, kMaxPosition);
  const std::vector<bool> slides = read_layer_types(fields, config, [](int32_t index) { return index % 4 != 3; });
  const int32_t full = add_rope(fields, config, layer, {.theta = 5e5, .layer_type = "full_attention"});
  const int32_t sliding =
      add_rope(fields, config, layer, {.theta = 5e5, .is_scaled = false, .layer_type = "sliding_attention"});
  layer.attention.rope = full;
  set_layers(fields, config, layer, window, slides);
  for (LayerConfig& each : config.layers) each.attention.rope = each.attention.window > 0 ? sliding : full;
}

}  // namespace millrace::model
