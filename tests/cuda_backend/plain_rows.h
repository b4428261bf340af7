#pragma once

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cuda/kernels.h"
#include "cuda_backend/plain_numbers.h"

/// The rows of a ragged batch, for the plain loops.
namespace millrace::cuda {

/// Calls each(row, sequence, position) for every row of a sequence.
template <class Each>
void each_row(const DeviceBatch& batch, const Each& each) {
  for (int32_t s = 0; s < *batch.sequence_count; ++s) {
    for (int32_t row = batch.row_begin[s]; row < batch.row_begin[s + 1]; ++row) {
      each(row, s, batch.prefix[s] + row - batch.row_begin[s]);
    }
  }
}

/// Checks that the bounds, which size grids, hold the batch at the time of running.
inline void check_bounds(const char* op, const DeviceBatch& batch, const BatchBounds& bounds) {
  const int32_t count = *batch.sequence_count;
  int32_t longest = 0;
  for (int32_t s = 0; s < count; ++s) longest = std::max(longest, batch.row_begin[s + 1] - batch.row_begin[s]);
  CHECK(count <= bounds.sequences && batch.row_begin[count] <= bounds.rows && longest <= bounds.sequence_rows &&
            batch.split_begin[count] <= bounds.splits,
        "{}: launched for {} sequences, {} rows, {} of one, {} splits; found {}, {}, {}, {}", op, bounds.sequences,
        bounds.rows, bounds.sequence_rows, bounds.splits, count, batch.row_begin[count], longest,
        batch.split_begin[count]);
}

inline uint32_t page_of(const DeviceBatch& batch, const DeviceKvCache& cache, int32_t sequence, int32_t position) {
  return batch.pages[batch.page_begin[sequence] + position / cache.page_size];
}

/// Returns the number of a code of 8 bits. E4M3 has no subnormal numbers here.
inline float code_number(KvElement element, uint8_t code) {
  if (element == KvElement::kInt8) return static_cast<float>(static_cast<int8_t>(code));
  const int exponent = code >> 3 & 15;
  const float magnitude = exponent == 0 ? 0.0f : std::ldexp(1.0f + static_cast<float>(code & 7) / 8, exponent - 7);
  return code < 128 ? magnitude : -magnitude;
}

/// Rotates [rotary_dim] values to a position and rounds them.
inline void rotate(const float* from, const DeviceRotary& rotary, int32_t position, uint16_t* to) {
  const int32_t half = rotary.rotary_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(static_cast<float>(position) * rotary.inverse_frequency[i]);
    const auto cos = static_cast<float>(std::cos(angle)) * rotary.attention_factor;
    const auto sin = static_cast<float>(std::sin(angle)) * rotary.attention_factor;
    to[i] = to_bf16(from[i] * cos - from[i + half] * sin);
    to[i + half] = to_bf16(from[i + half] * cos + from[i] * sin);
  }
}

/// Returns the factor of the queries at a position.
inline float query_factor(const DeviceRotary& rotary, int32_t position) {
  const auto period = static_cast<float>(rotary.query_period);
  const auto counted = static_cast<float>(position + rotary.query_offset);
  return 1.0f + rotary.query_beta * std::log(1.0f + std::floor(counted / period));
}

}  // namespace millrace::cuda
