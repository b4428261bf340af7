#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void add_scaled_sums(Device& device, tensor::Matrix sums, const CpuVector* bias, const CpuVector* norm, float epsilon,
                     float factor, tensor::Matrix hidden) {
  check_matrix("sums", sums, tensor::DType::kF32, hidden.rows, hidden.cols);
  check_matrix("hidden", hidden, tensor::DType::kF32, sums.rows, sums.cols);
  for (const CpuVector* vector : {bias, norm})
    CHECK(vector == nullptr || vector->size() == sums.cols, "a vector of {} for {} columns", vector->size(), sums.cols);
  device.for_rows(sums.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      auto* values = row_of<float>(sums, row);
      if (bias != nullptr) device.kernels.add(bias->data(), values, sums.cols);
      if (norm != nullptr) device.kernels.rms_norm(values, norm->data(), epsilon, values, sums.cols);
      auto* out = row_of<float>(hidden, row);
      device.kernels.add_expert(values, factor, out, nullptr, 0, sums.cols, out);
    }
  });
}

}  // namespace millrace::cpu
