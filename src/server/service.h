#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::sched {
class Engine;
}

namespace millrace::server {

struct PoolingModel;

/// Values of a request's fields that it does not set: those of the model's generation_config.json, or neutral ones.
struct GenerationDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;
  float repetition_penalty = 1.0f;
  std::vector<TokenId> eos_token_ids;
};

/// What the server serves. The engine outlives the server.
struct Service {
  sched::Engine* engine = nullptr;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  ///< null: the model has none, chat requests are refused
  text::ChatTemplate::SpecialTokens special_tokens;         ///< for the template that a request brings
  GenerationDefaults defaults;
  std::shared_ptr<const PoolingModel> pooling;  ///< null: requests for vectors and scores are refused
  /// Appends further metrics in Prometheus' text form; may be empty. Called on the server's thread.
  std::function<void(std::string&)> extra_metrics;
  /// Adds members to the response of /server_info; may be empty. Called on the server's thread.
  std::function<void(JsonWriter&)> extra_info;
};

}  // namespace millrace::server
