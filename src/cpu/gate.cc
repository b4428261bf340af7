#include <cstring>

#include "cpu/ops.h"

namespace millrace::cpu {

void gate(Device& device, tensor::Matrix values, tensor::Matrix gates) {
  check_matrix("values", values, device.compute_dtype, gates.rows, gates.cols);
  check_matrix("gates", gates, tensor::DType::kF32, values.rows, values.cols);
  const auto width = static_cast<size_t>(values.cols);
  device.pool.run_ranges(values.rows, [&](int64_t begin, int64_t end, int slot) {
    auto* const wide = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(width);
    for (int64_t row = begin; row < end; ++row) {
      auto* const own = row_of<std::byte>(values, row);
      if (values.dtype == tensor::DType::kF32) {
        std::memcpy(wide, own, width * sizeof(float));
      } else {
        device.kernels.widen(own, wide, values.cols);
      }
      device.kernels.gate(wide, row_of<float>(gates, row), wide, values.cols);
      device.store_row(wide, own, values.dtype, values.cols);
    }
  });
}

}  // namespace millrace::cpu
