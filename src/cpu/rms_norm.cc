#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void rms_norm(Device& device, tensor::Matrix hidden, const CpuVector& weight, float epsilon, tensor::Matrix out) {
  check_matrix("hidden", hidden, tensor::DType::kF32, out.rows, out.cols);
  check_matrix("out", out, device.compute_dtype, hidden.rows, weight.size());
  const auto width = static_cast<size_t>(hidden.cols);
  device.pool.run_ranges(hidden.rows, [&](int64_t begin, int64_t end, int slot) {
    float* values = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(width);
    for (int64_t row = begin; row < end; ++row) {
      device.kernels.rms_norm(row_of<float>(hidden, row), weight.data(), epsilon, values, hidden.cols);
      device.store_row(values, row_of<std::byte>(out, row), out.dtype, hidden.cols);
    }
  });
}

void rms_norm_in_place(Device& device, tensor::Matrix values, const CpuVector& weight, float epsilon) {
  check_matrix("values", values, tensor::DType::kF32, values.rows, weight.size());
  device.for_rows(values.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      auto* const own = row_of<float>(values, row);
      device.kernels.rms_norm(own, weight.data(), epsilon, own, values.cols);
    }
  });
}

}  // namespace millrace::cpu
