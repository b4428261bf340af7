#include "base/check.h"
#include "cpu/blocked_product.h"
#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::Matrix;

/// Computes every panel for every block of rows and hands each result to finish(row, first feature, feature count, c),
/// where c holds the 64 sums of that row and panel.
template <class Finish>
void for_each_product(Device& device, const Matrix& x, const CpuPackedWeight& weight, const Finish& finish) {
  check_matrix("x", x, device.compute_dtype, x.rows, weight.in_features());
  const BlockedProduct product(device, prepare_left(device, x, weight.layout()), x.rows, weight);
  device.pool.run_ranges(product.block_count(), [&](int64_t begin, int64_t end, int slot) {
    std::byte* const scratch = device.slot_scratch[static_cast<size_t>(slot)].reserve(product.scratch_bytes());
    for (int64_t block = begin; block < end; ++block) product.run(block, scratch, finish);
  });
}

void check_bias(const CpuVector* bias, const CpuPackedWeight& weight) {
  CHECK(bias == nullptr || bias->size() == weight.out_features(), "a bias of {} for {} features", bias->size(),
        weight.out_features());
}

std::byte* element_of(const Matrix& matrix, int64_t row, int64_t col) {
  return row_of<std::byte>(matrix, row) + static_cast<size_t>(col) * tensor::size_of(matrix.dtype);
}

}  // namespace

void matmul(Device& device, Matrix x, const CpuPackedWeight& weight, const CpuVector* bias, Matrix out) {
  CHECK(!weight.gate_up(), "a gate-up weight is for matmul_silu_mul");
  CHECK(out.dtype == DType::kF32 || out.dtype == device.compute_dtype, "a product cannot be stored as {}",
        tensor::to_string(out.dtype));
  check_matrix("out", out, out.dtype, x.rows, weight.out_features());
  check_bias(bias, weight);
  for_each_product(device, x, weight, [&](int64_t row, int64_t feature, int64_t count, float* c) {
    if (bias != nullptr) device.kernels.add(bias->data() + feature, c, count);
    device.store_row(c, element_of(out, row, feature), out.dtype, count);
  });
}

void matmul_add(Device& device, Matrix x, const CpuPackedWeight& weight, const CpuVector* bias, Matrix hidden) {
  CHECK(!weight.gate_up(), "a gate-up weight is for matmul_silu_mul");
  check_matrix("hidden", hidden, DType::kF32, x.rows, weight.out_features());
  check_bias(bias, weight);
  for_each_product(device, x, weight, [&](int64_t row, int64_t feature, int64_t count, float* c) {
    if (bias != nullptr) device.kernels.add(bias->data() + feature, c, count);
    device.kernels.add(c, row_of<float>(hidden, row) + feature, count);
  });
}

void matmul_silu_mul(Device& device, Matrix x, const CpuPackedWeight& weight, Matrix out) {
  CHECK(weight.gate_up(), "matmul_silu_mul needs a weight from pack_gate_up");
  check_matrix("out", out, device.compute_dtype, x.rows, weight.out_features());
  for_each_product(device, x, weight, [&](int64_t row, int64_t feature, int64_t count, float* c) {
    device.kernels.silu_mul(c, c + kPanelColumns / 2, c, count);
    device.store_row(c, element_of(out, row, feature), out.dtype, count);
  });
}

}  // namespace millrace::cpu
