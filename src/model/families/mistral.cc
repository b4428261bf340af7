#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Llama's block with a window on every layer, unless layer_types or a null window say otherwise. Mistral 7B v0.1
/// leaves the window out, which means 4096.
void describe_mistral(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  layer.attention.rope = add_rope(fields, config, layer);
  const int32_t silent = fields.has_key("sliding_window") ? 0 : 4096;
  const int32_t window = fields.integer_or("sliding_window", silent, 1, kMaxPosition);
  set_layers(fields, config, layer, window, read_layer_types(fields, config, [&](int32_t) { return window > 0; }));
}

}  // namespace millrace::model
