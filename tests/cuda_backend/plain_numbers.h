#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

/// The shared parts of the plain loops over bf16.
namespace millrace::cuda {

inline float to_float(uint16_t bits) {
  return tensor::BFloat16{bits}.to_float();
}
inline uint16_t to_bf16(float value) {
  return tensor::BFloat16::from_float(value).bits;
}
inline const uint16_t* bf16(const void* data) {
  return static_cast<const uint16_t*>(data);
}
inline uint16_t* bf16(void* data) {
  return static_cast<uint16_t*>(data);
}

inline float dot(const uint16_t* a, const uint16_t* b, size_t count) {
  constexpr size_t kPartialSums = 16;  // so that the loop becomes vector instructions
  std::array<float, kPartialSums> sums{};
  size_t i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) {
    for (size_t lane = 0; lane < kPartialSums; ++lane) sums[lane] += to_float(a[i + lane]) * to_float(b[i + lane]);
  }
  for (; i < count; ++i) sums[i % kPartialSums] += to_float(a[i]) * to_float(b[i]);
  float sum = 0.0f;
  for (const float part : sums) sum += part;
  return sum;
}

/// Adds 1, 2, 4 or 8 numbers pairwise until one is left.
inline float tree_sum(std::vector<float> sums) {
  for (size_t half = 1; half < sums.size(); half *= 2) {
    for (size_t i = 0; i < sums.size(); i += 2 * half) sums[i] += sums[i + half];
  }
  return sums.front();
}

}  // namespace millrace::cuda
