#pragma once

#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace millrace::cuda {

/// Computes the cosines and sines of a position's angles, [rotary_dim / 2] each, with `threads` threads of which this
/// one is number `thread`.
__device__ inline void compute_angles(const DeviceRotary& rotary, int32_t position, int thread, int threads,
                                      float* cos_table, float* sin_table) {
  for (int32_t i = thread; i < rotary.rotary_dim / 2; i += threads) {
    // The angle is an f32 product by definition; at position 10^6 its cos and sin need more than f32.
    const auto angle = static_cast<double>(static_cast<float>(position) * rotary.inverse_frequency[i]);
    cos_table[i] = static_cast<float>(cos(angle)) * rotary.attention_factor;
    sin_table[i] = static_cast<float>(sin(angle)) * rotary.attention_factor;
  }
}

/// Returns the factor of the queries at a position.
__device__ inline float query_factor(const DeviceRotary& rotary, int32_t position) {
  if (rotary.query_beta == 0.0f) return 1.0f;
  const float periods =
      floorf(static_cast<float>(position + rotary.query_offset) / static_cast<float>(rotary.query_period));
  return 1.0f + rotary.query_beta * logf(1.0f + periods);
}

}  // namespace millrace::cuda
