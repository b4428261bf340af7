#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// x += rms(Attention(rms(x))); x += rms(F(rms(x))). Half of each head is rotated, in neighbouring pairs.
void describe_glm4(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.kv_head_count = 2, .head_dim = 128, .epsilon = 1.5625e-7});
  layer.norms = {
      .before_attention = true, .after_attention = true, .before_feed_forward = true, .after_feed_forward = true};
  layer.attention.qkv_bias = fields.flag_or("attention_bias", true);
  layer.attention.rope = add_rope(fields, config, layer, {.partial = 0.5});
  config.ropes.back().interleaved = true;
  config.layers.assign(config.layers.size(), layer);
  config.names.attention_output_norm = "post_self_attn_layernorm";
  config.names.feed_forward_norm = "post_attention_layernorm";
  config.names.fused_gate_up = "mlp.gate_up_proj";
  config.names.feed_forward_output_norm = "post_mlp_layernorm";
}

}  // namespace millrace::model
