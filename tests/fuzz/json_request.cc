#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "fuzz/targets.h"
#include "server/openai/pooling_request.h"
#include "server/openai/request.h"

namespace millrace::fuzz {
namespace {

using namespace server::openai;

constexpr RequestLimits kLimits{.vocab_size = 1000, .max_choices = 64};

template <class T>
bool refused(const ApiResult<T>& parsed) {
  if (parsed.has_value()) return false;
  CHECK(parsed.error().status == 400 || parsed.error().status == 413);
  CHECK(!parsed.error().message.empty());
  return true;
}

template <class T>
bool within(const std::optional<T>& value, T low, T high) {
  return !value || (*value >= low && *value <= high);
}

bool is_id(TokenId id) {
  return id >= 0 && id < static_cast<TokenId>(kLimits.vocab_size);
}

/// What the engine relies on.
void check_common(const CommonRequest& request) {
  CHECK(request.n >= 1 && request.n <= kLimits.max_choices);
  CHECK(within(request.temperature, 0.0f, 2.0f) && within(request.min_p, 0.0f, 1.0f));
  CHECK(within(request.top_p, 0.0f, 1.0f) && request.priority == 0);
  CHECK(!request.repetition_penalty || (*request.repetition_penalty > 0.0f && *request.repetition_penalty <= 10.0f));
  CHECK(std::abs(request.presence_penalty) <= 2.0f && std::abs(request.frequency_penalty) <= 2.0f);
  CHECK(request.top_logprobs >= -1 && request.top_logprobs <= 20);
  CHECK(request.prompt_logprobs >= -1 && request.prompt_logprobs <= 20);
  CHECK(!request.top_k || *request.top_k >= 0);
  CHECK(request.stop.size() <= 16);
  CHECK(std::ranges::none_of(request.stop, &std::string::empty));
  CHECK(std::ranges::all_of(request.stop_token_ids, is_id));
  for (const auto& [id, bias] : request.logit_bias) CHECK(is_id(id) && std::abs(bias) <= 100.0f);
}

void check_conversation(const Conversation& conversation) {
  CHECK(!conversation.messages.empty());
  for (const ChatMessage& message : conversation.messages) CHECK(!message.role.empty());
}

void check_pairs(const PairRequest& request) {
  check_common(request);
  CHECK(!request.documents.empty() && request.documents.size() <= kMaxPoolingInputs);
  CHECK(request.queries.size() == 1 || request.queries.size() == request.documents.size());
  CHECK(request.query_of(request.pair_count() - 1) < request.queries.size());
}

}  // namespace

void json_request(std::string_view input) {
  const std::string body(input);
  if (const auto parsed = parse_completion_request(body, kLimits); !refused(parsed)) {
    check_common(*parsed);
    CHECK(!parsed->prompts.empty() && parsed->prompts.size() * parsed->n <= kLimits.max_choices);
    for (const Prompt& prompt : parsed->prompts) {
      if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) CHECK(std::ranges::all_of(*ids, is_id));
    }
  }
  if (const auto parsed = parse_chat_request(body, kLimits); !refused(parsed)) {
    check_common(*parsed);
    CHECK(parsed->max_tokens != 0u);
    check_conversation(parsed->conversation);
  }
  if (const auto parsed = parse_template_request(body, kLimits); !refused(parsed)) check_conversation(*parsed);
  if (const auto parsed = parse_abort_request(body); !refused(parsed)) {
    CHECK(parsed->all || !parsed->request_id.empty());
  }
  if (const auto parsed = parse_flush_request(body); !refused(parsed)) {
    CHECK(parsed->timeout_s >= 0 && parsed->timeout_s <= 3600);
  }
  if (const auto parsed = parse_embedding_request(body, kLimits); !refused(parsed)) {
    check_common(*parsed);
    CHECK(!parsed->inputs.empty() && parsed->inputs.size() <= kMaxPoolingInputs);
    for (const Prompt& prompt : parsed->inputs) {
      if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) CHECK(std::ranges::all_of(*ids, is_id));
    }
  }
  if (const auto parsed = parse_rerank_request(body, kLimits); !refused(parsed)) check_pairs(*parsed);
  if (const auto parsed = parse_score_request(body, kLimits); !refused(parsed)) check_pairs(*parsed);
  (void)refused(parse_tokenize_request(body, kLimits));
  (void)refused(parse_detokenize_request(body, kLimits));
  (void)refused(parse_pause_request(body));
}

}  // namespace millrace::fuzz
