#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace millrace::tensor {

/// Parameters of sampling one sequence's next token. docs/sampling.md defines the order and the formulas.
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
  int32_t top_logprobs = -1;  ///< -1: none; 0: of the sampled token; k: also of the k most probable
  uint32_t min_tokens = 0;    ///< the ids in `stop_token_ids` are masked for this many output tokens
  std::vector<TokenId> stop_token_ids;

  [[nodiscard]] bool greedy() const { return temperature < 1e-5f; }
  [[nodiscard]] bool needs_history() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
};

/// Log-probabilities in nats: log_softmax of the raw logits, before bias, penalties and temperature.
struct TokenLogprobs {
  TokenId token = 0;
  float logprob = 0.0f;
  int32_t rank = 0;                            ///< 1: the most probable token
  std::vector<std::pair<TokenId, float>> top;  ///< descending; of equal ones the lower id first
};

/// All inputs of one draw except the logits.
struct SampleSpec {
  const SamplingParams* params = nullptr;
  /// The position of the sampled token in its sequence, which is the counter of the random generator.
  uint64_t position = 0;
  uint32_t output_count = 0;        ///< tokens sampled so far
  std::span<const TokenId> prompt;  ///< empty unless needs_history()
  std::span<const TokenId> output;  ///< empty unless needs_history()
  /// TokenMask::words of the allowed ids; empty: all. Ids after its last word are not allowed.
  std::span<const uint32_t> allowed;
};

/// Why a row of logits has no distribution: it holds a NaN or +infinity, or only -infinity.
enum class LogitFault : uint8_t { kNone, kNan, kInfinity, kAllNegativeInfinity };
inline constexpr uint8_t kLogitFaultCount = 4;
/// Returns the contents of the logits in words, for an error message.
[[nodiscard]] std::string_view to_string(LogitFault fault);

/// The sampled token of one row.
struct SampleResult {
  LogitFault fault = LogitFault::kNone;  ///< otherwise the other members are meaningless
  TokenId token = 0;
  /// Filled when top_logprobs >= 0.
  TokenLogprobs logprobs;
};

/// The log-probabilities of one scored row.
struct ScoreResult {
  LogitFault fault = LogitFault::kNone;  ///< otherwise the other members are meaningless
  TokenLogprobs logprobs;
};

}  // namespace millrace::tensor
