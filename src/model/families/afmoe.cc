#include <cmath>

#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

/// Reads experts that sigmoid scores and a correction bias choose, and the shared expert.
MoeConfig read_afmoe_experts(FieldReader& fields) {
  require_text(fields, "score_func", "sigmoid");
  MoeConfig moe = read_grouped_experts(fields, {.count = "num_experts", .shared = "num_shared_experts"});
  moe.renormalize = fields.flag_or("route_norm", true);
  moe.weight_scale = static_cast<float>(fields.number_or("route_scale", 1.0, 0.0, 1e6));
  moe.f32_router = false;
  return moe;
}

}  // namespace

/// Llama's block with norms before and after both parts, norms of each head of q and k, and an output gate. Three
/// layers of four slide and are rotated; the fourth sees everything and is not. The first layers are dense.
void describe_afmoe(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.head_dim = 128, .epsilon = 1e-5});
  if (fields.flag_or("attention_bias", false)) fields.fail("attention_bias true is not supported, wanted false");
  if (fields.flag_or("mup_enabled", false)) config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  layer.norms = {
      .before_attention = true, .after_attention = true, .before_feed_forward = true, .after_feed_forward = true};
  layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.output_gate = true;
  const int32_t window = fields.integer_or("sliding_window", 1024, 1, kMaxPosition);
  const int32_t period = fields.integer_or("global_attn_every_n_layers", 4, 1, kMaxLayerCount);
  const std::vector<bool> slides =
      read_layer_types(fields, config, [period](int32_t index) { return (index + 1) % period != 0; });
  const int32_t rope = add_rope(fields, config, layer);
  set_layers(fields, config, layer, window, slides);
  for (LayerConfig& each : config.layers) {
    if (each.attention.window > 0) each.attention.rope = rope;
  }
  set_experts_by_layer_types(fields, config, read_afmoe_experts(fields),
                             fields.integer_or("num_dense_layers", 1, 0, kMaxLayerCount));
  config.names = {.attention_gate = "self_attn.gate_proj",
                  .attention_output_norm = "post_attention_layernorm",
                  .feed_forward_norm = "pre_mlp_layernorm",
                  .feed_forward_output_norm = "post_mlp_layernorm",
                  .router = "mlp.router.gate",
                  .choice_bias = "mlp.expert_bias"};
}

}  // namespace millrace::model
