#include <cmath>

#include "cpu/ops.h"

namespace millrace::cpu {

void gelu(Device& device, tensor::Matrix in, tensor::Matrix out) {
  check_matrix("in", in, tensor::DType::kF32, out.rows, out.cols);
  check_matrix("out", out, device.compute_dtype, in.rows, in.cols);
  constexpr float kInverseRoot2 = 0.70710678118654752f;
  const auto width = static_cast<size_t>(in.cols);
  device.pool.run_ranges(in.rows, [&](int64_t begin, int64_t end, int slot) {
    float* values = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(width);
    for (int64_t row = begin; row < end; ++row) {
      const auto* from = row_of<float>(in, row);
      for (size_t i = 0; i < width; ++i) values[i] = 0.5f * from[i] * (1.0f + std::erf(from[i] * kInverseRoot2));
      device.store_row(values, row_of<std::byte>(out, row), out.dtype, in.cols);
    }
  });
}

}  // namespace millrace::cpu
