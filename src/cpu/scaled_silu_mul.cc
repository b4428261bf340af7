#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void scaled_silu_mul(Device& device, tensor::Matrix in, float factor, tensor::Matrix out) {
  check_matrix("in", in, tensor::DType::kF32, out.rows, 2 * out.cols);
  check_matrix("out", out, device.compute_dtype, in.rows, out.cols);
  const auto width = static_cast<size_t>(out.cols);
  device.pool.run_ranges(in.rows, [&](int64_t begin, int64_t end, int slot) {
    float* const values = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(width);
    for (int64_t row = begin; row < end; ++row) {
      const auto* gate = row_of<float>(in, row);
      for (size_t i = 0; i < width; ++i) values[i] = factor * gate[i];
      device.kernels.activate({}, values, gate + width, values, out.cols);
      device.store_row(values, row_of<std::byte>(out, row), out.dtype, out.cols);
    }
  });
}

}  // namespace millrace::cpu
