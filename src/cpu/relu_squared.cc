#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void relu_squared(Device& device, tensor::Matrix in, tensor::Matrix out) {
  check_matrix("in", in, tensor::DType::kF32, out.rows, out.cols);
  check_matrix("out", out, device.compute_dtype, in.rows, in.cols);
  const auto width = static_cast<size_t>(in.cols);
  device.pool.run_ranges(in.rows, [&](int64_t begin, int64_t end, int slot) {
    float* const values = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(width);
    for (int64_t row = begin; row < end; ++row) {
      square_relu(row_of<float>(in, row), values, in.cols);
      device.store_row(values, row_of<std::byte>(out, row), out.dtype, in.cols);
    }
  });
}

void square_relu(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    // Written so that a NaN stays one.
    const float positive = in[i] < 0.0f ? 0.0f : in[i];
    out[i] = positive * positive;
  }
}

}  // namespace millrace::cpu
