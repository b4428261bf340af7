#include "cpu/ops.h"

namespace millrace::cpu {

void convert(Device& device, tensor::Matrix hidden, tensor::Matrix out) {
  check_matrix("hidden", hidden, tensor::DType::kF32, out.rows, out.cols);
  check_matrix("out", out, device.compute_dtype, hidden.rows, hidden.cols);
  device.pool.run_ranges(hidden.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      device.store_row(row_of<float>(hidden, row), row_of<std::byte>(out, row), out.dtype, hidden.cols);
  });
}

}  // namespace millrace::cpu
