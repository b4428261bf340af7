#pragma once

// Log-probabilities of one row, for sample and score.

#include "cuda/sampler.cuh"

namespace millrace::cuda {

/// The log-probabilities of a row's raw logits, with those of `token`.
struct ScoredRow {
  const float* logits = nullptr;
  int32_t vocab = 0;
  int32_t row = 0;
  int32_t token = 0;
  int32_t top_count = 0;
};

/// Collects the `count` ids that the cut keeps and writes them in order.
__device__ inline void write_top(const ScoredRow& scored, const Cutoff& cut, int32_t count, double normaliser,
                                 const SampleOutputs& outputs) {
  SamplerShared& shared = sampler_shared();
  __syncthreads();
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
  for_each_logit(scored.logits, scored.vocab, [&](int32_t id, float logit) {
    if (!cut.keeps(logit, id)) return;
    shared.top[atomicAdd(&shared.listed, 1u)] =
        static_cast<FixedPoint>(order_key(logit)) << 32 | ~static_cast<uint32_t>(id);
  });
  __syncthreads();
  for (int32_t i = threadIdx.x; i < count; i += kSamplerThreads) {
    const FixedPoint own = shared.top[i];
    int32_t place = 0;
    for (int32_t j = 0; j < count; ++j) place += shared.top[j] > own ? 1 : 0;
    const auto id = static_cast<int32_t>(~static_cast<uint32_t>(own));
    const size_t at = static_cast<size_t>(scored.row) * outputs.top_capacity + place;
    outputs.top_tokens[at] = id;
    outputs.top_logprobs[at] = static_cast<float>(static_cast<double>(scored.logits[id]) - normaliser);
  }
}

__device__ inline void score_row(const ScoredRow& scored, int32_t* list, const SampleOutputs& outputs) {
  const Extremes extremes = find_extremes(scored.logits, scored.vocab);
  if (extremes.fault != 0) {
    if (threadIdx.x == 0) outputs.rows[scored.row] = {.fault = extremes.fault};
    return;
  }
  const float own = scored.logits[scored.token];
  FixedPoint weights = 0;
  FixedPoint above = 0;
  for_each_logit(scored.logits, scored.vocab, [&](int32_t, float logit) {
    weights += static_cast<FixedPoint>(expf(logit - extremes.max) * kFullWeight);
    above += logit > own ? 1 : 0;
  });
  const FixedPoint total = block_sum(weights);
  const FixedPoint rank = block_sum(above) + 1;
  const double normaliser =
      static_cast<double>(extremes.max) + log(static_cast<double>(total) / static_cast<double>(kFullWeight));
  const int32_t count = max(0, min(min(scored.top_count, outputs.top_capacity), scored.vocab));
  if (threadIdx.x == 0) {
    outputs.rows[scored.row] = {.fault = 0,
                                .token = scored.token,
                                .logprob = static_cast<float>(static_cast<double>(own) - normaliser),
                                .rank = static_cast<int32_t>(rank),
                                .top_count = count};
  }
  if (count == 0) return;
  constexpr float kBinsPerUnit = 64.0f;
  Cutoff cut = select_largest(
      scored.logits, scored.vocab, extremes.max, kBinsPerUnit, list, [](int32_t, float) { return FixedPoint{1}; },
      [count](FixedPoint) { return static_cast<FixedPoint>(count); });
  keep_needed_ties(scored.logits, list, 1, cut);
  write_top(scored, cut, count, normaliser, outputs);
}

}  // namespace millrace::cuda
