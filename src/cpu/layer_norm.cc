#include <cmath>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

constexpr int64_t kLanes = 8;

/// Returns the sum of term(i) for i in [0, count), in a fixed order of f64 additions.
template <class Term>
double sum_of(int64_t count, const Term& term) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (; i < count; ++i) lanes[i % kLanes] += term(i);
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

void normalize(float* row, const float* weight, const float* bias, double epsilon, int64_t width) {
  const auto count = static_cast<double>(width);
  const double mean = sum_of(width, [row](int64_t i) { return double{row[i]}; }) / count;
  const double squares = sum_of(width, [row, mean](int64_t i) {
    const double distance = double{row[i]} - mean;
    return distance * distance;
  });
  const double inverse = 1.0 / std::sqrt(squares / count + epsilon);
  for (int64_t i = 0; i < width; ++i) {
    row[i] = static_cast<float>((double{row[i]} - mean) * inverse) * weight[i] + bias[i];
  }
}

}  // namespace

void layer_norm(Device& device, tensor::Matrix hidden, const CpuVector& weight, const CpuVector& bias, float epsilon,
                tensor::Matrix out) {
  check_matrix("hidden", hidden, tensor::DType::kF32, out.rows, out.cols);
  check_matrix("out", out, device.compute_dtype, hidden.rows, weight.size());
  CHECK(bias.size() == weight.size(), "a bias of {} for a norm of {}", bias.size(), weight.size());
  device.pool.run_ranges(hidden.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      auto* values = row_of<float>(hidden, row);
      normalize(values, weight.data(), bias.data(), double{epsilon}, hidden.cols);
      device.store_row(values, row_of<std::byte>(out, row), out.dtype, hidden.cols);
    }
  });
}

}  // namespace millrace::cpu
