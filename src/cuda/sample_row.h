#pragma once

#include "cuda/kernels.h"
#include "tensor/sampling.h"

namespace millrace::cuda {

/// Converts sampling parameters to the ops' format, except the ranges of its lists.
[[nodiscard]] inline SampleRow sample_row(const tensor::SamplingParams& params, uint64_t position) {
  return {.temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .repetition_penalty = params.repetition_penalty,
          .frequency_penalty = params.frequency_penalty,
          .presence_penalty = params.presence_penalty,
          .top_k = params.top_k,
          .top_logprobs = params.top_logprobs,
          .seed = params.seed,
          .position = position};
}

}  // namespace millrace::cuda
