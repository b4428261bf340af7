#include "tensor/w8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/parallel_for.h"

namespace millrace::tensor {
namespace {

constexpr float kMaxW8Value = 127.0f;
constexpr float kMinMagnitude = 0x1p-100f;
/// Weights that a thread quantizes at a time. For fewer another thread costs more than it saves.
constexpr int64_t kWeightsPerBlock = 1 << 20;

/// Rounds a small f32 to the nearest integer, ties to even, when added and subtracted.
constexpr float kRounder = 12582912.0f;

/// Returns the scale of a group whose largest magnitude is `largest`, finite.
BFloat16 scale_of(float largest, W8Scaling scaling) {
  if (scaling == W8Scaling::kPerGroupPowerOfTwo)
    return BFloat16::from_float(std::ldexp(1.0f, std::ilogb(largest)) / 64.0f);
  return BFloat16::from_float(largest / kMaxW8Value);
}

/// Returns the scale of weights from the bits of their largest magnitude, which may not be finite.
BFloat16 scale_of_bits(int32_t largest_bits, W8Scaling scaling) {
  if (largest_bits >= 0x7F800000) return BFloat16::from_float(std::numeric_limits<float>::quiet_NaN());
  const auto largest = std::bit_cast<float>(largest_bits);
  return largest < kMinMagnitude ? BFloat16() : scale_of(largest, scaling);
}

/// Returns the bits of the largest magnitude of a whole group, whose fixed length lets the compiler vectorize.
/// Magnitudes are ordered like their bits, with NaN on top.
int32_t largest_magnitude_bits(const float (&weights)[kW8Group]) {
  int32_t largest_bits = 0;
  for (const float weight : weights) largest_bits = std::max(largest_bits, std::bit_cast<int32_t>(weight) & 0x7FFFFFFF);
  return largest_bits;
}

void quantize_group(const float (&weights)[kW8Group], BFloat16 scale, int8_t (&values)[kW8Group]) {
  const float divisor = scale.to_float();
  std::fill(std::begin(values), std::end(values), int8_t{0});
  if (!(divisor > 0.0f)) return;  // of nothing but zeros, or not finite
  for (int64_t i = 0; i < kW8Group; ++i) {
    const float rounded = weights[i] / divisor + kRounder - kRounder;
    const float bounded = rounded > kMaxW8Value ? kMaxW8Value : rounded < -kMaxW8Value ? -kMaxW8Value : rounded;
    values[i] = static_cast<int8_t>(static_cast<int32_t>(bounded));
  }
}

void quantize_rows(const HostTensor& matrix, W8Scaling scaling, int64_t begin, int64_t end, W8Storage& storage) {
  const int64_t cols = matrix.shape[1];
  const int64_t groups = w8_groups(cols);
  std::vector<float> row_weights(static_cast<size_t>(groups * kW8Group));  // zeros beyond the last column
  std::vector<int32_t> largest_bits(static_cast<size_t>(groups));
  const auto group_of = [&row_weights](int64_t group) -> const float(&)[kW8Group] {
    return *reinterpret_cast<const float(*)[kW8Group]>(row_weights.data() + group * kW8Group);
  };
  for (int64_t row = begin; row < end; ++row) {
    read_floats(matrix, row * cols, cols, row_weights.data());
    for (int64_t group = 0; group < groups; ++group) {
      largest_bits[static_cast<size_t>(group)] = largest_magnitude_bits(group_of(group));
    }
    BFloat16 of_row;
    if (storage.per_channel_scales) {
      of_row = scale_of_bits(*std::ranges::max_element(largest_bits), scaling);
      storage.scales[static_cast<size_t>(row)] = of_row;
    }
    for (int64_t group = 0; group < groups; ++group) {
      BFloat16 scale = of_row;
      if (!storage.per_channel_scales) {
        scale = scale_of_bits(largest_bits[static_cast<size_t>(group)], scaling);
        storage.scales[static_cast<size_t>(row * groups + group)] = scale;
      }
      int8_t values[kW8Group];
      quantize_group(group_of(group), scale, values);
      const int64_t first = group * kW8Group;
      std::copy_n(values, std::min(kW8Group, cols - first), storage.values.data() + row * cols + first);
    }
  }
}

}  // namespace

W8Matrix W8Storage::view() const {
  return {.name = name,
          .rows = shape[0],
          .cols = shape[1],
          .values = reinterpret_cast<const std::byte*>(values.data()),
          .scales = reinterpret_cast<const std::byte*>(scales.data()),
          .per_channel_scales = per_channel_scales};
}

float W8Matrix::scale(int64_t row, int64_t group) const {
  const HostTensor all{.dtype = scale_dtype, .shape = {rows, groups()}, .data = scales};
  float value = 0.0f;
  read_floats(all, row * groups() + group, 1, &value);
  return value;
}

std::vector<float> dequantize(const W8Matrix& matrix) {
  std::vector<float> weights;
  weights.reserve(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    float scale = 0.0f;
    for (int64_t col = 0; col < matrix.cols; ++col) {
      if (col % (matrix.per_channel_scales ? matrix.cols : kW8Group) == 0)
        scale = matrix.scale(row, matrix.per_channel_scales ? 0 : col / kW8Group);
      weights.push_back(scale * static_cast<float>(static_cast<int8_t>(matrix.values[row * matrix.cols + col])));
    }
  }
  return weights;
}

W8Storage quantize_w8(const HostTensor& matrix, W8Scaling scaling, int32_t threads) {
  CHECK(matrix.shape.rank() == 2, "{}: {} is not a matrix", matrix.name, matrix.shape.to_string());
  const int64_t rows = matrix.shape[0];
  const int64_t cols = matrix.shape[1];
  W8Storage storage{.name = matrix.name, .shape = matrix.shape, .values = {}, .scales = {}};
  storage.per_channel_scales = scaling == W8Scaling::kPerChannel;
  storage.values.resize(static_cast<size_t>(rows * cols));
  storage.scales.resize(static_cast<size_t>(rows * (storage.per_channel_scales ? 1 : w8_groups(cols))));
  const int64_t block = kWeightsPerBlock / std::clamp<int64_t>(cols, 1, kWeightsPerBlock);
  parallel_for({.count = rows, .block = block, .threads = threads, .thread_name = "quantize"},
               [&](int64_t begin, int64_t end) { quantize_rows(matrix, scaling, begin, end, storage); });
  return storage;
}

}  // namespace millrace::tensor
