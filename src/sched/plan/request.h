#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tensor/sampling.h"

namespace millrace::grammar {
class Grammar;
}

/// What a client asks of the engine and what it hears back; plain data.
namespace millrace::sched {

enum class FinishReason : uint8_t {
  kStop,    ///< a token of stop_token_ids was drawn, which is the last of those delivered, or the grammar is at its end
  kLength,  ///< max_tokens were drawn, or the context is full
  kAbort,   ///< the client or an administrator ended it
};

/// One continuation of one prompt. Owned by the caller until submitted.
struct GenerateRequest {
  std::string id;                    ///< for logs and abort; unique among the requests in flight
  std::vector<TokenId> prompt;       ///< at least one token
  tensor::SamplingParams sampling;   ///< stop_token_ids: eos and the user's; empty to ignore eos
  uint32_t max_tokens = 16;          ///< 0 only with prompt_top_logprobs >= 0 (scoring)
  int32_t prompt_top_logprobs = -1;  ///< -1: none; 0: each prompt token's logprob; k: also k alternatives
  int32_t priority = 0;              ///< larger goes first under the priority policy
  std::string cache_salt;            ///< prefixes are shared only between requests of equal salt
  std::shared_ptr<const grammar::Grammar> grammar;  ///< what the answer may be; null: anything
  std::vector<TokenId> prediction;  ///< what the client expects the answer to be like; empty: it doesn't say
};

/// What a pause does with the running requests.
enum class PauseMode : uint8_t {
  kInPlace,  ///< they keep their slots and pages and stand still
  kRetract,  ///< they go back to the queue and free their pages
  kAbort,    ///< they end
};

struct Timings {
  int64_t queued_us = 0;   ///< submit to first scheduling
  int64_t prefill_us = 0;  ///< first scheduling to first token
};

/// What has happened to a request since the last event; tokens that arrive while the client is busy are merged.
struct GenerateEvent {
  std::vector<TokenId> tokens;
  std::vector<tensor::TokenLogprobs> logprobs;  ///< one per token when asked for, else empty
  /// Once, with the first event, when asked for: [prompt.size()]; the first has no logprob (token only, NaN).
  std::vector<tensor::TokenLogprobs> prompt_logprobs;
  uint32_t cached_tokens = 0;          ///< prompt tokens whose KV came from the cache
  uint32_t accepted_predictions = 0;   ///< tokens of the prediction that were drafted, and drawn
  uint32_t rejected_predictions = 0;   ///< that were drafted, and not drawn
  std::optional<FinishReason> finish;  ///< set in the last event of a request that ended well
  std::optional<Error> error;          ///< set in the last event of a request that failed
  Timings timings;
  [[nodiscard]] bool last() const { return finish.has_value() || error.has_value(); }
};

}  // namespace millrace::sched
