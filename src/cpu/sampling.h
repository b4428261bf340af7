#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "tensor/sampling.h"

/// Sampling of one row of logits. Pure functions; the op `sample` runs them over rows in parallel.
namespace millrace::cpu {

/// Buffers that draws reuse, owned by one thread.
struct SamplerScratch {
  std::vector<float> logits;        // [vocab] after bias and penalties
  std::vector<float> weights;       // [vocab] or [candidates]
  std::vector<double> block_sums;   // [ceil(vocab / 1024)]
  std::vector<float> maxima;        // [ceil(vocab / 64)]
  std::vector<TokenId> candidates;  // ids that may be drawn
  std::vector<uint32_t> counts;     // [vocab] occurrences in the output, zeros between draws
};

/// The unnormalised distribution of a draw. Ids ascend.
struct Candidates {
  tensor::LogitFault fault = tensor::LogitFault::kNone;  // else nothing can be drawn
  std::span<const TokenId> ids;                          // [n]; empty: every id of the vocabulary
  std::span<const float> weights;                        // [n]
  std::span<const double> block_sums;                    // of 1024 weights each when `ids` is empty
  double total = 0.0;
};

/// Processes one row: [mask] → [min_tokens] → bias → penalties → temperature → min_p → top_k → top_p. A greedy row has
/// one candidate. A NaN logit or a non-finite maximum is a fault. The result's views point into `scratch`.
[[nodiscard]] Candidates find_candidates(const Kernels& kernels, std::span<const float> logits,
                                         const tensor::SampleSpec& spec, SamplerScratch& scratch);

/// Returns the token at `uniform` in [0, 1) of the cumulative distribution over ascending ids.
[[nodiscard]] TokenId draw(const Candidates& candidates, double uniform);

/// Returns log_softmax of `token`, its rank, and the `top_count` most probable tokens; of the raw logits, or their
/// fault.
[[nodiscard]] tensor::ScoreResult token_logprobs(const Kernels& kernels, std::span<const float> logits, TokenId token,
                                                 int32_t top_count, SamplerScratch& scratch);

/// Writes the ids of the `count` largest logits, and of all that tie with the smallest of them, to scratch.candidates,
/// ascending.
void collect_largest(const Kernels& kernels, std::span<const float> logits, int64_t count, SamplerScratch& scratch);

/// Returns the distribution of a draw with normalised probabilities, by ascending id; for tests and tools.
[[nodiscard]] std::vector<std::pair<TokenId, float>> sampling_distribution(std::span<const float> logits, int32_t vocab,
                                                                           const tensor::SampleSpec& spec);

}  // namespace millrace::cpu
