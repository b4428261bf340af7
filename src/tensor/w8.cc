#include "tensor/w8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <thread>

#include "base/check.h"
#include "base/machine.h"
#include "base/thread_name.h"

namespace millrace::tensor {
namespace {

constexpr float kLargestValue = 127.0f;
constexpr float kLeastMagnitude = 0x1p-100f;
/// Below so many weights another thread costs more than it brings.
constexpr int64_t kWeightsPerThread = 1 << 20;

/// Adding and subtracting it rounds a small f32 to the nearest integer, ties to even.
constexpr float kRounder = 12582912.0f;

/// `largest`: magnitude of the group, finite.
BFloat16 scale_of(float largest, W8Scaling scaling) {
  if (scaling == W8Scaling::kLargest) return BFloat16::from_float(largest / kLargestValue);
  return BFloat16::from_float(std::ldexp(1.0f, std::ilogb(largest)) / 64.0f);
}

/// A whole group, so that the compiler knows its length and takes vectors.
BFloat16 quantize_group(const float (&weights)[kW8Group], W8Scaling scaling, int8_t (&values)[kW8Group]) {
  int32_t largest_bits = 0;  // magnitudes are ordered as their bits, NaN above all
  for (const float weight : weights) largest_bits = std::max(largest_bits, std::bit_cast<int32_t>(weight) & 0x7FFFFFFF);
  const auto largest = std::bit_cast<float>(largest_bits);
  std::fill(std::begin(values), std::end(values), int8_t{0});
  if (largest_bits >= 0x7F800000) return BFloat16::from_float(std::numeric_limits<float>::quiet_NaN());
  if (largest < kLeastMagnitude) return {};
  const BFloat16 scale = scale_of(largest, scaling);
  const float divisor = scale.to_float();
  for (int64_t i = 0; i < kW8Group; ++i) {
    const float rounded = weights[i] / divisor + kRounder - kRounder;
    const float bounded = rounded > kLargestValue ? kLargestValue : rounded < -kLargestValue ? -kLargestValue : rounded;
    values[i] = static_cast<int8_t>(static_cast<int32_t>(bounded));
  }
  return scale;
}

void quantize_rows(const HostTensor& matrix, W8Scaling scaling, int64_t begin, int64_t end, W8Storage& storage) {
  const int64_t cols = matrix.shape[1];
  const int64_t groups = w8_groups(cols);
  std::vector<float> row_weights(static_cast<size_t>(groups * kW8Group));  // zeros beyond the last column
  for (int64_t row = begin; row < end; ++row) {
    read_floats(matrix, row * cols, cols, row_weights.data());
    for (int64_t group = 0; group < groups; ++group) {
      float weights[kW8Group];
      int8_t values[kW8Group];
      std::copy_n(row_weights.data() + group * kW8Group, kW8Group, weights);
      storage.scales[static_cast<size_t>(row * groups + group)] = quantize_group(weights, scaling, values);
      const int64_t first = group * kW8Group;
      std::copy_n(values, std::min(kW8Group, cols - first), storage.values.data() + row * cols + first);
    }
  }
}

}  // namespace

W8Matrix W8Storage::view() const {
  return {name, shape[0], shape[1], reinterpret_cast<const std::byte*>(values.data()),
          reinterpret_cast<const std::byte*>(scales.data())};
}

W8Storage quantize_w8(const HostTensor& matrix, W8Scaling scaling, int32_t threads) {
  CHECK(matrix.shape.rank() == 2, "{}: {} is not a matrix", matrix.name, matrix.shape.to_string());
  const int64_t rows = matrix.shape[0];
  const int64_t cols = matrix.shape[1];
  W8Storage storage{.name = matrix.name, .shape = matrix.shape, .values = {}, .scales = {}};
  storage.values.resize(static_cast<size_t>(rows * cols));
  storage.scales.resize(static_cast<size_t>(rows * w8_groups(cols)));
  const int64_t most = threads > 0 ? threads : Machine().processors();
  const int64_t parts = std::clamp<int64_t>(rows * cols / kWeightsPerThread, 1, most);
  std::vector<std::jthread> helpers;
  for (int64_t part = 1; part < parts; ++part) {
    helpers.emplace_back([&, part] {
      name_thread("quantize");
      quantize_rows(matrix, scaling, rows * part / parts, rows * (part + 1) / parts, storage);
    });
  }
  quantize_rows(matrix, scaling, 0, rows / parts, storage);
  helpers.clear();
  return storage;
}

}  // namespace millrace::tensor
