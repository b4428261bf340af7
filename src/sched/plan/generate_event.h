#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "sched/plan/finish_reason.h"
#include "tensor/sampling.h"

namespace millrace::sched {

/// The times of one request so far.
struct Timings {
  int64_t queued_us = 0;   ///< submit to first scheduling
  int64_t prefill_us = 0;  ///< first scheduling to first token
};

/// What has happened to a request since its last event. Events that come while the client is busy are merged.
struct GenerateEvent {
  std::vector<TokenId> tokens;
  std::vector<tensor::TokenLogprobs> logprobs;  ///< [tokens] if requested, else empty
  /// [prompt] in the first event if requested, else empty. The first token has no logprob: its value is NaN.
  std::vector<tensor::TokenLogprobs> prompt_logprobs;
  std::vector<float> pooled;           // [hidden] in the last event of a request with pooling, else empty
  uint32_t cached_tokens = 0;          ///< prompt tokens whose KV came from the cache
  uint32_t accepted_predictions = 0;   ///< drafts from the prediction that were accepted
  uint32_t rejected_predictions = 0;   ///< drafts from the prediction that were rejected
  std::optional<FinishReason> finish;  ///< set in the last event of a request that ended well
  std::optional<Error> error;          ///< set in the last event of a request that failed
  bool is_returned = false;            ///< with `error`: it has never run, and may run on another ring
  Timings timings;
  [[nodiscard]] bool last() const { return finish.has_value() || error.has_value(); }
};

}  // namespace millrace::sched
