#include "base/check.h"
#include "fuzz/targets.h"
#include "model/config.h"
#include "model/generation_config.h"
#include "model/pooling_config.h"

namespace millrace::fuzz {

void config_json(std::string_view input) {
  if (const auto config = model::parse_config(input); config.has_error()) {
    CHECK(config.error().code == ErrorCode::kData && config.error().message.starts_with("config.json"));
  } else {
    CHECK(config->vocab_size > 0 && config->hidden_size > 0 && config->intermediate_size > 0);
    CHECK(config->layer_count > 0 && config->head_count > 0 && config->head_dim > 0);
    CHECK(config->kv_head_count > 0 && config->head_count % config->kv_head_count == 0);
    CHECK(config->context_length() > 0);
    CHECK(config->sliding_windows.size() == static_cast<size_t>(config->layer_count));
    const auto& moe = config->moe;
    CHECK(config->sparse_layers.size() == (moe.expert_count > 0 ? config->sliding_windows.size() : 0));
    CHECK(moe.expert_count == 0 || (moe.experts_per_token > 0 && moe.intermediate_size > 0));
    CHECK(moe.experts_per_token <= moe.expert_count);
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
