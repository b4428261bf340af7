#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace millrace::tensor {

/// How one sequence's next token is drawn. Order and definitions: docs/sampling.md.
struct SamplingParams {
  float temperature = 1.0f;         ///< below 1e-5: greedy
  float top_p = 1.0f;               ///< (0, 1]
  float min_p = 0.0f;               ///< [0, 1]
  int32_t top_k = 0;                ///< 0: off
  float repetition_penalty = 1.0f;  ///< > 0; over prompt and output
  float frequency_penalty = 0.0f;   ///< over the output
  float presence_penalty = 0.0f;    ///< over the output
  uint64_t seed = 0;                ///< with the position, the only source of randomness
  std::vector<std::pair<TokenId, float>> logit_bias;
  int32_t top_logprobs = -1;  ///< -1: none; 0: the chosen token's; k: also the k most probable
  uint32_t min_tokens = 0;    ///< before so many outputs the ids in `stop_token_ids` cannot be drawn
  std::vector<TokenId> stop_token_ids;

  [[nodiscard]] bool greedy() const { return temperature < 1e-5f; }
  [[nodiscard]] bool needs_history() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
};

/// log_softmax of the raw logits (before bias, penalties and temperature), in nats.
struct TokenLogprobs {
  TokenId token = 0;
  float logprob = 0.0f;
  int32_t rank = 0;                            ///< 1 for the most probable
  std::vector<std::pair<TokenId, float>> top;  ///< descending; ties by lower id
};

/// Everything that one draw depends on besides the logits.
struct SampleSpec {
  const SamplingParams* params = nullptr;
  /// Position in the sequence of the token to be drawn: the counter of the random generator.
  uint64_t position = 0;
  uint32_t output_count = 0;        ///< tokens drawn so far
  std::span<const TokenId> prompt;  ///< empty unless needs_history()
  std::span<const TokenId> output;  ///< empty unless needs_history()
  /// TokenMask::words of the ids that may be drawn; empty: all. Ids behind its last word may not.
  std::span<const uint32_t> allowed;
};

/// Why a row of logits gives no distribution: it holds a NaN or +infinity, or nothing but -infinity.
enum class LogitFault : uint8_t { kNone, kNan, kInfinity, kAllNegativeInfinity };
inline constexpr uint8_t kLogitFaultCount = 4;
/// What the logits hold, for a message.
[[nodiscard]] std::string_view to_string(LogitFault fault);

struct SampleResult {
  LogitFault fault = LogitFault::kNone;  ///< else the rest means nothing
  TokenId token = 0;
  /// Filled when top_logprobs >= 0.
  TokenLogprobs logprobs;
};

struct ScoreResult {
  LogitFault fault = LogitFault::kNone;  ///< else the rest means nothing
  TokenLogprobs logprobs;
};

}  // namespace millrace::tensor
