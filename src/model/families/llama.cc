#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// x += Wo·attention(rope(Wqkv·rms(x))); x += Wdown·(silu(Wgate·rms(x)) · Wup·rms(x)).
void describe_llama(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.attention.rope = add_rope(fields, config, layer);
  config.layers.assign(config.layers.size(), layer);
}

}  // namespace millrace::model
