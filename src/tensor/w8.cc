#include "tensor/w8.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <thread>

#include "base/check.h"
#include "base/machine.h"

namespace millrace::tensor {
namespace {

constexpr float kLargestValue = 127.0f;
constexpr float kLeastMagnitude = 0x1p-100f;
/// Below so many weights another thread costs more than it brings.
constexpr int64_t kWeightsPerThread = 1 << 20;

/// Adding and subtracting it rounds a small f32 to the nearest integer, ties to even.
constexpr float kRounder = 12582912.0f;

BFloat16 quantize_group(const float* weights, int64_t count, int8_t* values) {
  uint32_t largest_bits = 0;  // magnitudes are ordered as their bits, NaN above all
  for (int64_t i = 0; i < count; ++i)
    largest_bits = std::max(largest_bits, std::bit_cast<uint32_t>(weights[i]) & 0x7FFFFFFFu);
  const auto largest = std::bit_cast<float>(largest_bits);
  std::fill(values, values + count, int8_t{0});
  if (largest_bits >= 0x7F800000u) return BFloat16::from_float(std::numeric_limits<float>::quiet_NaN());
  if (largest < kLeastMagnitude) return {};
  const BFloat16 scale = BFloat16::from_float(largest / kLargestValue);
  const float divisor = scale.to_float();
  for (int64_t i = 0; i < count; ++i) {
    const float rounded = weights[i] / divisor + kRounder - kRounder;
    values[i] = static_cast<int8_t>(static_cast<int32_t>(std::clamp(rounded, -kLargestValue, kLargestValue)));
  }
  return scale;
}

void quantize_rows(const HostTensor& matrix, int64_t begin, int64_t end, W8Storage& storage) {
  const int64_t cols = matrix.shape[1];
  const int64_t groups = w8_groups(cols);
  float weights[kW8Group];
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t first = row * cols + group * kW8Group;
      const int64_t count = std::min(kW8Group, cols - group * kW8Group);
      read_floats(matrix, first, count, weights);
      storage.scales[static_cast<size_t>(row * groups + group)] =
          quantize_group(weights, count, storage.values.data() + first);
    }
  }
}

}  // namespace

W8Matrix W8Storage::view() const {
  return {name, shape[0], shape[1], reinterpret_cast<const std::byte*>(values.data()),
          reinterpret_cast<const std::byte*>(scales.data())};
}

W8Storage quantize_w8(const HostTensor& matrix) {
  CHECK(matrix.shape.rank() == 2, "{}: {} is not a matrix", matrix.name, matrix.shape.to_string());
  const int64_t rows = matrix.shape[0];
  const int64_t cols = matrix.shape[1];
  W8Storage storage{.name = matrix.name, .shape = matrix.shape, .values = {}, .scales = {}};
  storage.values.resize(static_cast<size_t>(rows * cols));
  storage.scales.resize(static_cast<size_t>(rows * w8_groups(cols)));
  const int64_t processors = Machine().processors();
  const int64_t parts = std::clamp<int64_t>(rows * cols / kWeightsPerThread, 1, processors);
  std::vector<std::jthread> helpers;
  for (int64_t part = 1; part < parts; ++part) {
    helpers.emplace_back([&, part] { quantize_rows(matrix, rows * part / parts, rows * (part + 1) / parts, storage); });
  }
  quantize_rows(matrix, 0, rows / parts, storage);
  helpers.clear();
  return storage;
}

}  // namespace millrace::tensor
