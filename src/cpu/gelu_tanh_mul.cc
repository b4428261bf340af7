#include <utility>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

namespace {

/// out [T, F] = g(gate[f]) · factor[f], where `of(row)` returns the row's gates and factors.
template <class Of>
void mul_rows(Device& device, tensor::Matrix out, const Of& of) {
  const auto width = static_cast<size_t>(out.cols);
  device.pool.run_ranges(out.rows, [&](int64_t begin, int64_t end, int slot) {
    float* values = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(width);
    for (int64_t row = begin; row < end; ++row) {
      const auto [gates, factors] = of(row);
      device.kernels.activate({.function = tensor::GatedFunction::kGeluTanh}, gates, factors, values, out.cols);
      device.store_row(values, row_of<std::byte>(out, row), out.dtype, out.cols);
    }
  });
}

}  // namespace

void gelu_tanh_mul(Device& device, tensor::Matrix in, tensor::Matrix out) {
  check_matrix("in", in, tensor::DType::kF32, out.rows, 2 * out.cols);
  check_matrix("out", out, device.compute_dtype, in.rows, out.cols);
  mul_rows(device, out, [&](int64_t row) {
    const auto* gates = row_of<float>(in, row);
    return std::pair(gates, gates + out.cols);
  });
}

void gelu_tanh_gate(Device& device, tensor::Matrix gates, tensor::Matrix factors, int64_t first, tensor::Matrix out) {
  check_matrix("gates", gates, tensor::DType::kF32, out.rows, out.cols);
  check_matrix("factors", factors, tensor::DType::kF32, out.rows, factors.cols);
  check_matrix("out", out, device.compute_dtype, gates.rows, gates.cols);
  CHECK(first >= 0 && first + out.cols <= factors.cols, "columns from {} to {} of {}", first, first + out.cols,
        factors.cols);
  mul_rows(device, out, [&](int64_t row) {
    return std::pair(row_of<const float>(gates, row), row_of<const float>(factors, row) + first);
  });
}

}  // namespace millrace::cpu
