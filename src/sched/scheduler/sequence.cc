#include "sched/scheduler/sequence.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace millrace::sched {
namespace {

constexpr int64_t kMaxTokenIds = int64_t{std::numeric_limits<TokenId>::max()} + 1;

}  // namespace

std::unique_ptr<Sequence> make_sequence(SequenceId id, GenerateRequest request) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->prompt_length = static_cast<uint32_t>(request.prompt.size());
  sequence->tokens = std::move(request.prompt);
  sequence->request = std::move(request);
  if (const auto& grammar = sequence->request.grammar; grammar != nullptr) {
    sequence->matcher.emplace(grammar, samples_end_token(*grammar, sequence->request.sampling));
  }
  if (sequence->request.reasoning_limit) sequence->reasoning_budget.emplace(sequence->request.reasoning_limit);
  return sequence;
}

Result<void> check_request(const GenerateRequest& request, const RequestLimits& limits) {
  const size_t max_prompt = max_prompt_length(request, limits.context_length);
  const bool is_pooled = request.pooling != Pooling::kNone;
  CHECK(!is_pooled || (request.max_tokens == 0 && request.prompt_top_logprobs < 0),
        "request '{}' is pooled and also wants {} tokens", request.id, request.max_tokens);
  if (!is_pooled && !limits.has_output_head) {
    return Error{ErrorCode::kInvalidArgument, "the model is loaded without its output head, so it generates nothing"};
  }
  if (request.prompt.empty()) return Error{ErrorCode::kInvalidArgument, "the prompt is empty"};
  if (request.prompt.size() > max_prompt) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt has {} tokens, a context of {} leaves room for {}",
                      request.prompt.size(), limits.context_length, max_prompt);
  }
  const auto known = limits.vocab_size > 0 ? static_cast<int64_t>(limits.vocab_size) : kMaxTokenIds;
  const auto unknown =
      std::ranges::find_if(request.prompt, [known](TokenId token) { return token < 0 || token >= known; });
  if (unknown != request.prompt.end()) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt has token {}, the model knows those from 0 to {}",
                      *unknown, known - 1);
  }
  return {};
}

bool samples_end_token(const grammar::Grammar& grammar, const tensor::SamplingParams& sampling) {
  return std::ranges::find_first_of(grammar.stop_token_ids(), sampling.stop_token_ids) !=
         grammar.stop_token_ids().end();
}

}  // namespace millrace::sched
