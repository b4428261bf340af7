#pragma once

// GEMM of 8-bit panels with one scale per column (output channel) and 8-bit rows with one scale each. Sums are integers
// until all steps are added, so every path of every instruction set gives the same bits. Included only by kernels.cc.

#include "cpu/w8a8_kernel.h"

namespace millrace::cpu {
namespace {

/// Returns the value of a sum in the column with scale `scale`.
MILLRACE_INLINE Vec scaled_sum(Ints sum, const LhsQuantParams& quant_params, Vec scale) {
  return __builtin_convertvector(sum + quant_params.compensation, Vec) * (scale * quant_params.scale);
}

/// Corrects integer sums for the weights' offset, and leaves them integers.
template <int kVecs>
MILLRACE_INLINE void compensate_sums(float* c, int rows, const LhsQuantParams* quant_params) {
  for (int row = 0; row < rows; ++row, c += kPanelColumns) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v)
      store_as(c + v * kLanes, load_as<Ints>(c + v * kLanes) + quant_params[row].compensation);
  }
}

/// Replaces integer sums by their values: [rows, kVecs * 16] of c from a column on, with the given scales. Without
/// scales they stay integers.
template <int kVecs>
MILLRACE_INLINE void scale_sums(float* c, int rows, const LhsQuantParams* quant_params, const float* column_scales) {
  if (column_scales == nullptr) return compensate_sums<kVecs>(c, rows, quant_params);
  Vec scale[kVecs];
#pragma clang loop unroll(full)
  for (int v = 0; v < kVecs; ++v) scale[v] = load(column_scales + v * kLanes);
  for (int row = 0; row < rows; ++row, c += kPanelColumns) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v)
      store(c + v * kLanes, scaled_sum(load_as<Ints>(c + v * kLanes), quant_params[row], scale[v]));
  }
}

#if !defined(__AMX_INT8__)
struct ChannelFormat {
  using Sums = Ints;
  static constexpr size_t kLhsStep = kInt8StepBytes;
  static constexpr size_t kColumnStep = kInt8Depth;
  static constexpr int kDepth = kInt8Depth;
  static constexpr int kStreamPrefetchLevel = kPrefetchToL2;

  template <int R, int V, class Strides>
  static MILLRACE_INLINE void step(Ints (&acc)[R][V], const char* lhs, Strides strides, const char* const (&right)[V]) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      const Int8Step columns(right[v]);
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) acc[r][v] = columns.add_dot(acc[r][v], lhs + strides.to(r));
    }
  }
};

void gemm_w8a8_channel(const GemmTask& task) {
  gemm<ChannelFormat>(task);
  scale_sums<kPanelColumns / kLanes>(task.c, task.rows, task.quant_params, task.column_scales);
}
#endif

/// Loads 16 values of a row; zeros from `count` on.
MILLRACE_INLINE Vec load_values(const std::byte* from, bool bf16, int64_t count) {
  if (!bf16) {
    Vec value = {};
    if (count >= kLanes) return load_as<Vec>(from);
    __builtin_memcpy(&value, from, static_cast<size_t>(count) * sizeof(float));
    return value;
  }
  if (count >= kLanes) return widen_bf16(load_as<Halves>(from));
  Halves value = {};
  __builtin_memcpy(&value, from, static_cast<size_t>(count) * sizeof(uint16_t));
  return widen_bf16(value);
}

/// Stores 16 integers in the layout of an LHS row.
MILLRACE_INLINE void store_lhs_int8(std::byte* to, Ints values) {
#if MILLRACE_VNNI
  store_as(to, __builtin_convertvector(values, Bytes));
#else
  typedef int16_t Words __attribute__((vector_size(32)));
  const Words words = __builtin_convertvector(values, Words);
  store_as(to, __builtin_shufflevector(words, words, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
#endif
}

/// Returns the `i`th to the (i + 15)th of `count` values.
template <bool kBf16>
MILLRACE_INLINE Vec values_at(const std::byte* in, int64_t i, int64_t count) {
  return load_values(in + static_cast<size_t>(i) * (kBf16 ? 2 : 4), kBf16, count - i);
}

template <bool kBf16>
MILLRACE_INLINE float largest_magnitude_of(const std::byte* in, int64_t count) {
  Ints largest = {};  // magnitudes are ordered as their bits, NaN above all
  for (int64_t i = 0; i < count; i += kLanes) {
    const auto magnitude = reinterpret_cast<Ints>(reinterpret_cast<Bits>(values_at<kBf16>(in, i, count)) & 0x7FFFFFFFu);
    largest = magnitude > largest ? magnitude : largest;
  }
  const int32_t bits = __builtin_reduce_max(largest);
  float most;
  __builtin_memcpy(&most, &bits, sizeof(most));
  return most;
}

template <bool kBf16>
MILLRACE_INLINE LhsQuantParams quantize_lhs_part_of(const std::byte* in, int64_t count, float largest, std::byte* out,
                                                    size_t stride) {
  constexpr int kVecSteps = kLanes / kInt8Depth;
  int32_t largest_bits;
  __builtin_memcpy(&largest_bits, &largest, sizeof(largest_bits));
  const bool is_finite = largest_bits < 0x7F800000;
  // A row whose values are all below 2^-100 becomes zero.
  const Vec inverse = splat(is_finite && largest >= 0x1p-100f ? 127.0f / largest : 0.0f);
  Ints sum = {};
  for (int64_t i = 0; i < count; i += kChannelRunSteps * kInt8Depth, out += stride) {
#pragma clang loop unroll(full)
    for (int part = 0; part < kChannelRunSteps / kVecSteps; ++part) {
      const int64_t at = i + part * kLanes;
      Ints rounded = {};
      if (at < count && is_finite) {
        // Adding and subtracting it rounds a small f32 to the nearest integer, ties to even.
        rounded = __builtin_convertvector(values_at<kBf16>(in, at, count) * inverse + 12582912.0f - 12582912.0f, Ints);
      }
      sum += rounded;
      store_lhs_int8(out + part * kVecSteps * kInt8StepBytes, rounded);
    }
  }
  if (!is_finite) return {channel_row_scale(largest), 0};
  return {channel_row_scale(largest), -128 * __builtin_reduce_add(sum)};
}

float largest_magnitude(const std::byte* in, bool bf16, int64_t count) {
  return bf16 ? largest_magnitude_of<true>(in, count) : largest_magnitude_of<false>(in, count);
}

LhsQuantParams quantize_lhs_part(const std::byte* in, bool bf16, int64_t count, float largest, std::byte* out,
                                 size_t stride) {
  return bf16 ? quantize_lhs_part_of<true>(in, count, largest, out, stride)
              : quantize_lhs_part_of<false>(in, count, largest, out, stride);
}

LhsQuantParams quantize_lhs_row(const std::byte* in, bool bf16, int64_t count, std::byte* out, size_t stride) {
  return quantize_lhs_part(in, bf16, count, largest_magnitude(in, bf16, count), out, stride);
}

}  // namespace
}  // namespace millrace::cpu
