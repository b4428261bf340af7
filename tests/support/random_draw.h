#pragma once

#include <cstdint>
#include <vector>

#include "tensor/sampling.h"

namespace millrace::test {

/// What one row of logits is sampled with.
struct Draw {
  tensor::SamplingParams params;
  uint64_t position = 0;
  uint32_t output_count = 0;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;
  std::vector<uint32_t> allowed;
  [[nodiscard]] tensor::SampleSpec spec() const {
    return {.params = &params,
            .position = position,
            .output_count = output_count,
            .prompt = prompt,
            .output = output,
            .allowed = allowed};
  }
};

/// Returns a temperature, and each filter and penalty in every second call. `random` has `integer(low, end)`.
template <class Random>
[[nodiscard]] tensor::SamplingParams random_sampling(Random& random) {
  tensor::SamplingParams params;
  const auto sometimes = [&] { return random.integer(0, 2) == 0; };
  params.temperature = static_cast<float>(random.integer(3, 20)) / 10.0f;
  if (sometimes()) params.top_k = static_cast<int32_t>(random.integer(1, 40));
  if (sometimes()) params.top_p = static_cast<float>(random.integer(1, 99)) / 100.0f;
  if (sometimes()) params.min_p = static_cast<float>(random.integer(1, 50)) / 100.0f;
  if (sometimes()) params.repetition_penalty = 1.3f;
  if (sometimes()) params.frequency_penalty = 0.7f;
  if (sometimes()) params.presence_penalty = -0.4f;
  params.seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
  return params;
}

}  // namespace millrace::test
