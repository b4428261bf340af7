#include "base/check.h"
#include "fuzz/targets.h"
#include "model/families/read_config.h"
#include "model/generation_config.h"
#include "model/pooling_config.h"

namespace millrace::fuzz {

namespace {

void check_layer(const model::ModelConfig& config, const model::LayerConfig& layer) {
  const model::AttentionConfig& attention = layer.attention;
  CHECK(attention.head_count > 0 && attention.head_dim > 0 && attention.window >= 0);
  CHECK(attention.kv_head_count > 0 && attention.head_count % attention.kv_head_count == 0);
  CHECK(!attention.rope || static_cast<size_t>(*attention.rope) < config.ropes.size());
  CHECK(model::rotary_dim(config, attention) <= attention.head_dim);
  CHECK(layer.mixes() || layer.has_feed_forward());
  if (!layer.feed_forward.moe) return;
  const model::MoeConfig& moe = *layer.feed_forward.moe;
  CHECK(moe.experts_per_token > 0 && moe.experts_per_token <= moe.expert_count && moe.intermediate_size > 0);
}

}  // namespace

void config_json(std::string_view input) {
  if (const auto config = model::parse_config(input); config.has_error()) {
    CHECK(config.error().code == ErrorCode::kData && config.error().message.starts_with("config.json"));
  } else {
    CHECK(config->vocab_size > 0 && config->hidden_size > 0 && config->context_length() > 0);
    CHECK(config->layer_count() > 0);
    for (const model::LayerConfig& layer : config->layers) check_layer(*config, layer);
  }
  if (const auto suggested = model::parse_generation_config(input); suggested.has_error()) {
    CHECK(suggested.error().message.starts_with("generation_config.json"));
  }
  if (const auto mode = model::parse_pooling_mode(input, "1_Pooling"); mode.has_error()) {
    CHECK(mode.error().code == ErrorCode::kData && mode.error().message.starts_with("1_Pooling"));
  }
  if (const auto scores = model::parse_score_config(input, "config.json"); scores.has_error()) {
    CHECK(scores.error().code == ErrorCode::kData && scores.error().message.starts_with("config.json"));
  } else {
    CHECK(scores->classifier_from_token.empty() || scores->classifier_from_token.size() == 2);
  }
}

}  // namespace millrace::fuzz
