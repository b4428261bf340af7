#include <string>

#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

/// Returns for each layer whether it slides: by layer_types, or all but each sliding_window_pattern-th. A pattern of
/// letters, "LLLG", is the layers of a period, of which L slide; the model's last layer then sees everything.
std::vector<bool> read_sliding_layers(FieldReader& fields, const ModelConfig& config, int32_t window) {
  constexpr const char* kKey = "sliding_window_pattern";
  const auto pattern = fields.find(kKey);
  std::string letters;
  if (pattern && pattern->is_string()) {
    letters = fields.text(kKey);
    if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
      fields.fail_with("{} '{}' is not supported, wanted letters L and G", kKey, letters);
  } else {
    letters.assign(static_cast<size_t>(fields.integer_or(kKey, 4, 1, kMaxLayerCount)), 'L').back() = 'G';
  }
  const int32_t last = pattern && pattern->is_string() ? config.layer_count() - 1 : config.layer_count();
  return read_layer_types(fields, config, [&](int32_t index) {
    return window > 0 && !letters.empty() && index != last &&
           letters[static_cast<size_t>(index) % letters.size()] == 'L';
  });
}

/// Reads attention with norms of each head of q and k. Of a model with windows only the layers that slide are rotated.
void read_exaone_attention(FieldReader& fields, ModelConfig& config, LayerConfig layer) {
  layer.attention.qk_norm = QkNorm::kPerHead;
  const int32_t silent = fields.has_key("sliding_window") ? 0 : 4096;
  const int32_t window = fields.integer_or("sliding_window", silent, 1, kMaxPosition);
  const int32_t rope = add_rope(fields, config, layer);
  set_layers(fields, config, layer, window, read_sliding_layers(fields, config, window));
  for (LayerConfig& each : config.layers) {
    if (window == 0 || each.attention.window > 0) each.attention.rope = rope;
  }
}

MoeConfig read_exaone_experts(FieldReader& fields) {
  require_text(fields, "scoring_func", "sigmoid");
  MoeConfig moe = read_grouped_experts(fields, {.count = "num_experts", .shared = "num_shared_experts"});
  moe.weight_scale = static_cast<float>(fields.number_or("routed_scaling_factor", 2.5, 0.0, 1e6));
  return moe;
}

}  // namespace

/// x += rms(Wo·attention(rope(rms(Wqk·x)), Wv·x)); x += rms(F(x)).
void describe_exaone4(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.epsilon = 1e-5});
  layer.norms = {
      .before_attention = false, .after_attention = true, .before_feed_forward = false, .after_feed_forward = true};
  config.names.attention_output_norm = "post_attention_layernorm";
  config.names.feed_forward_output_norm = "post_feedforward_layernorm";
  read_exaone_attention(fields, config, layer);
}

/// Exaone 4's attention in Llama's order of norms. The first layers are dense, or those that mlp_layer_types names. The
/// others have DeepSeek-V3's experts.
void describe_exaone_moe(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  const LayerConfig layer = read_block(fields, config, {.epsilon = 1e-5});
  read_exaone_attention(fields, config, layer);
  set_experts_by_layer_types(fields, config, read_exaone_experts(fields),
                             fields.integer_or("first_k_dense_replace", 1, 0, kMaxLayerCount));
  config.names.choice_bias = "mlp.e_score_correction_bias";
  config.names.skipped_parts = "mtp.";
}

}  // namespace millrace::model
