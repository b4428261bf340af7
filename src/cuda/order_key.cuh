#pragma once

#include "cuda/launch.h"

/// Maps floats to words of the same order. NaNs have none.
namespace millrace::cuda {

/// Returns a word that orders like the float; both zeros are equal.
__device__ inline uint32_t order_key(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits ^ ((bits & 0x80000000u) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
__device__ inline float value_of_key(uint32_t key) {
  return __uint_as_float(key ^ ((key & 0x80000000u) != 0 ? 0x80000000u : 0xFFFFFFFFu));
}

}  // namespace millrace::cuda
