#include "model/config.h"

#include <algorithm>

namespace millrace::model {

int32_t ModelConfig::context_length() const {
  constexpr double kLongest = 1 << 28;
  int32_t reached = max_position;
  for (const RopeConfig& rope : ropes) {
    const double stretched = rope.kind == RopeKind::kYarn ? rope.factor * rope.original_max_position : 0.0;
    reached = std::max(reached, static_cast<int32_t>(std::min(stretched, kLongest)));
  }
  return std::min(reached, max_plain_attention_context);
}

std::optional<int32_t> chosen_tokens(const ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    const auto& latent = layer.attention.latent;
    if (layer.attends && latent && latent->indexer) return latent->indexer->chosen_count;
  }
  return std::nullopt;
}

void drop_indexers(ModelConfig& config) {
  const auto chosen = chosen_tokens(config);
  if (!chosen) return;
  config.max_plain_attention_context = std::min(config.max_plain_attention_context, *chosen);
  for (LayerConfig& layer : config.layers) {
    if (layer.attention.latent) layer.attention.latent->indexer.reset();
  }
}

void drop_wide_windows(ModelConfig& config) {
  const int32_t context = config.context_length();
  for (LayerConfig& layer : config.layers) {
    if (layer.attention.window < context) continue;
    layer.attention.window = 0;
    layer.attention.chunked = false;
  }
}

ModelConfig for_context(ModelConfig config, int32_t context) {
  if (context <= chosen_tokens(config).value_or(0)) drop_indexers(config);
  for (RopeConfig& rope : config.ropes) {
    if (rope.kind == RopeKind::kLongrope && context <= rope.original_max_position) rope.divisors = rope.near_divisors;
  }
  return config;
}

int32_t rotary_dim(const ModelConfig& config, const AttentionConfig& attention) {
  if (!attention.rope) return 0;
  const int32_t rotated = config.ropes[static_cast<size_t>(*attention.rope)].rotary_dim;
  return rotated > 0 ? rotated : attention.head_dim;
}

tensor::Routing MoeConfig::routing() const {
  return {.experts_per_row = experts_per_token,
          .renormalize = renormalize,
          .score = score,
          .weighs_inputs = weighs_inputs,
          .scale = weight_scale,
          .sum_epsilon = sum_epsilon,
          .min_sum = min_sum,
          .group_count = group_count,
          .groups_per_row = groups_per_token,
          .group_score = group_score};
}

}  // namespace millrace::model
