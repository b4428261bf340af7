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

}  // namespace

void layer_norm_row(const float* row, const float* weight, const float* bias, double epsilon, int64_t width,
                    float* out) {
  const auto count = static_cast<double>(width);
  const double mean = sum_of(width, [row](int64_t i) { return double{row[i]}; }) / count;
  const double squares = sum_of(width, [row, mean](int64_t i) {
    const double distance = double{row[i]} - mean;
    return distance * distance;
  });
  const double inverse = 1.0 / std::sqrt(squares / count + epsilon);
  for (int64_t i = 0; i < width; ++i) {
    out[i] = static_cast<float>((double{row[i]} - mean) * inverse) * weight[i];
    if (bias != nullptr) out[i] += bias[i];
  }
}

void layer_norm(Device& device, tensor::Matrix hidden, const CpuVector& weight, const CpuVector* bias, float epsilon,
                bool in_place, tensor::Matrix out) {
  check_matrix("hidden", hidden, tensor::DType::kF32, out.rows, out.cols);
  check_matrix("out", out, device.compute_dtype, hidden.rows, weight.size());
  CHECK(bias == nullptr || bias->size() == weight.size(), "a bias of {} for a norm of {}", bias->size(), weight.size());
  const float* addends = bias == nullptr ? nullptr : bias->data();
  const auto width = static_cast<size_t>(hidden.cols);
  device.pool.run_ranges(hidden.rows, [&](int64_t begin, int64_t end, int slot) {
    float* scratch = in_place ? nullptr : device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(width);
    for (int64_t row = begin; row < end; ++row) {
      auto* in = row_of<float>(hidden, row);
      float* values = in_place ? in : scratch;
      layer_norm_row(in, weight.data(), addends, double{epsilon}, hidden.cols, values);
      device.store_row(values, row_of<std::byte>(out, row), out.dtype, hidden.cols);
    }
  });
}

}  // namespace millrace::cpu
