#include "model/families/gemma.h"

#include <cmath>

#include "model/families/families.h"
#include "tensor/dtype.h"

namespace millrace::model {
namespace {

constexpr std::string_view kGemmaActivation = "gelu_pytorch_tanh";

/// Returns √hidden_size as the checkpoint's dtype has it.
float embedding_scale(const ModelConfig& config) {
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  return config.dtype == tensor::DType::kBF16 ? tensor::BFloat16::from_float(root).to_float() : root;
}

}  // namespace

LayerConfig read_gemma_block(FieldReader& fields, ModelConfig& config, BlockDefaults defaults) {
  require_activation(fields, kGemmaActivation, {"hidden_activation", "hidden_act"});
  defaults.head_count = 8;
  defaults.kv_head_count = 4;
  defaults.head_dim = 256;
  defaults.tied_embeddings = true;
  LayerConfig layer = read_block(fields, config, defaults);
  layer.norms = {
      .before_attention = true, .after_attention = true, .before_feed_forward = true, .after_feed_forward = true};
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.attention.scale =
      static_cast<float>(1.0 / std::sqrt(fields.number_or("query_pre_attn_scalar", 256.0, 1e-3, 1e6)));
  layer.feed_forward.activation = MlpActivation::kGeluTanh;
  config.norm = NormKind::kRmsPlusOne;
  config.embedding_scale = embedding_scale(config);
  config.names.attention_output_norm = "post_attention_layernorm";
  config.names.feed_forward_norm = "pre_feedforward_layernorm";
  config.names.feed_forward_output_norm = "post_feedforward_layernorm";
  return layer;
}

float read_gemma_cap(FieldReader& fields, const char* key, double silent) {
  const double fallback = fields.has_key(key) ? 0.0 : silent;
  return static_cast<float>(fields.number_or(key, fallback, 0.0, 1e6));
}

/// Gemma's block with soft caps. Every other layer slides, from the first on.
void describe_gemma2(FieldReader& fields, ModelConfig& config) {
  LayerConfig layer = read_gemma_block(fields, config, {.vocab_size = 256000, .max_position = 8192});
  layer.attention.soft_cap = read_gemma_cap(fields, "attn_logit_softcapping", 50.0);
  config.logit_soft_cap = read_gemma_cap(fields, "final_logit_softcapping", 30.0);
  layer.attention.rope = add_rope(fields, config, layer);
  const int32_t window = fields.integer_or("sliding_window", 4096, 1, kMaxPosition);
  set_layers(fields, config, layer, window,
             read_layer_types(fields, config, [](int32_t index) { return index % 2 == 0; }));
}

/// Gemma's block with norms of the heads of q and k. Five layers of six slide, with a rotation of their own.
void describe_gemma3(FieldReader& fields, ModelConfig& config) {
  LayerConfig layer = read_gemma_block(fields, config, {.vocab_size = 262208, .max_position = 131072});
  layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.soft_cap = read_gemma_cap(fields, "attn_logit_softcapping", 0.0);
  config.logit_soft_cap = read_gemma_cap(fields, "final_logit_softcapping", 0.0);
  const int32_t window = fields.integer_or("sliding_window", 4096, 1, kMaxPosition);
  const int32_t pattern = fields.integer_or("sliding_window_pattern", 6, 1, kMaxLayerCount);
  const std::vector<bool> slides =
      read_layer_types(fields, config, [pattern](int32_t index) { return (index + 1) % pattern != 0; });
  const int32_t full = add_rope(fields, config, layer, {.theta = 1e6, .layer_type = "full_attention"});
  const int32_t sliding = add_rope(
      fields, config, layer,
      {.theta = 1e4, .theta_key = "rope_local_base_freq", .is_scaled = false, .layer_type = "sliding_attention"});
  layer.attention.rope = full;
  set_layers(fields, config, layer, window, slides);
  for (LayerConfig& each : config.layers) each.attention.rope = each.attention.window > 0 ? sliding : full;
}

/// The text part of Gemma 3 with images.
void describe_gemma3_wrapper(FieldReader& fields, ModelConfig& config) {
  describe_gemma3(fields, config);
  config.names.skipped_parts = "vision_tower. multi_modal_projector. model.vision_tower. model.multi_modal_projector.";
}

}  // namespace millrace::model
