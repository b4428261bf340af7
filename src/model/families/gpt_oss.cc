#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Llama's block with biases everywhere, attention sinks, a window on every other layer, and experts with a clamped
/// SwiGLU. A token's weights are a softmax over the logits of its experts, biases included.
void describe_gpt_oss(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.head_dim = 64, .epsilon = 1e-5});
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", true);
  layer.attention.sinks = true;
  layer.attention.rope = add_rope(fields, config, layer, {.theta = 150000.0});
  MoeConfig moe = read_local_experts(fields, layer);
  moe.router_bias = moe.biases = true;
  moe.activation = {.function = tensor::GatedFunction::kClampedSwiglu,
                    .alpha = static_cast<float>(fields.number_or("swiglu_alpha", 1.702, 1e-3, 1e3)),
                    .limit = static_cast<float>(fields.number_or("swiglu_limit", 7.0, 1e-3, 1e6))};
  layer.feed_forward.moe = moe;
  const bool is_mxfp4 = config.weight_format.method == weights::QuantMethod::kMxfp4;
  config.names = {.router = "mlp.router", .expert_storage = is_mxfp4 ? ExpertStorage::kMxfp4 : ExpertStorage::kColumns};
  const int32_t window = fields.integer_or("sliding_window", 128, 1, kMaxPosition);
  set_layers(fields, config, layer, window,
             read_layer_types(fields, config, [](int32_t index) { return index % 2 == 0; }));
}

}  // namespace millrace::model
