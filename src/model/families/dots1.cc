#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Qwen3's block with DeepSeek-V3's experts. The first layers are dense, and those from max_window_layers on slide.
void describe_dots1(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.rope = add_rope(fields, config, layer);
  const int32_t silent = fields.has_key("sliding_window") ? 0 : 4096;
  const int32_t window = fields.integer_or("sliding_window", silent, 1, kMaxPosition);
  const int32_t first_window = fields.integer_or("max_window_layers", 62, 0, kMaxPosition);
  const std::vector<bool> slides =
      read_layer_types(fields, config, [&](int32_t index) { return window > 0 && index >= first_window; });
  set_layers(fields, config, layer, window, slides);
  MoeConfig moe = read_grouped_experts(fields);
  moe.renormalize = fields.flag_or("norm_topk_prob", false);
  set_experts_by_layer_types(fields, config, moe, fields.integer_or("first_k_dense_replace", 0, 0, kMaxLayerCount));
}

}  // namespace millrace::model
