#include <algorithm>

#include "base/check.h"
#include "cpu/left_rows.h"
#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::Matrix;

/// How a product is cut: `rows` pass over `steps` of `panels` panels one after another.
struct Blocking {
  int64_t rows = 0;
  int64_t steps = 0;
  int64_t panels = 1;
};

/// Tiles multiply faster than memory brings panels, so as many rows share one as the second-level cache holds, but not
/// all steps of them where those are many: then some panels share some steps of the rows.
Blocking choose_blocking(bool tiled, int64_t rows, int64_t steps) {
  constexpr int64_t kVectorRows = 128;
  constexpr int64_t kMostRows = 512;
  constexpr int64_t kLeftBytes = int64_t{1} << 20;
  if (!tiled) return {kVectorRows, steps, 1};
  const auto equal_blocks = [&](int64_t most) {
    const int64_t blocks = (rows + most - 1) / most;
    return round_up((rows + blocks - 1) / blocks, 2 * kTileHeight);
  };
  const int64_t fitting = kLeftBytes / (steps * 4) / (2 * kTileHeight) * 2 * kTileHeight;
  if (fitting >= kMostRows / 2) return {equal_blocks(std::min(fitting, kMostRows)), steps, 1};
  return {equal_blocks(kMostRows / 2), kLeftBytes / 2 / (kMostRows / 2) / 4, 4};
}

auto product_kernel(const Device& device, const PanelLayout& layout) {
  const Kernels& kernels = device.kernels;
  switch (layout.format) {
    case PanelFormat::kInt8: return kernels.product_int8;
    case PanelFormat::kW8: return device.bf16_left() ? kernels.product_w8_bf16 : kernels.product_w8_f32;
    case PanelFormat::kCompute: break;
  }
  return device.compute_dtype == DType::kBF16 ? kernels.product_bf16 : kernels.product_f32;
}

/// Computes every panel for every block of rows and hands each result to finish(row, first feature, feature count, c),
/// where c holds the 64 sums of that row and panel.
template <class Finish>
void for_each_product(Device& device, const Matrix& x, const CpuPackedWeight& weight, const Finish& finish) {
  check_matrix("x", x, device.compute_dtype, x.rows, weight.in_features());
  const LeftRows left = prepare_left(device, x, weight.layout());
  const auto product = product_kernel(device, weight.layout());
  const Blocking blocking = choose_blocking(left.tiled(), x.rows, weight.steps());
  const size_t c_bytes = static_cast<size_t>(blocking.panels * blocking.rows) * kPanelColumns * sizeof(float);
  const size_t scratch_bytes = weight.layout().format == PanelFormat::kW8 ? kW8ScratchBytes : 0;
  const int64_t row_blocks = (x.rows + blocking.rows - 1) / blocking.rows;
  const int64_t panel_blocks = (weight.panel_count() + blocking.panels - 1) / blocking.panels;
  device.pool.run_ranges(row_blocks * panel_blocks, [&](int64_t begin, int64_t end, int slot) {
    std::byte* const scratch = device.slot_scratch[static_cast<size_t>(slot)].reserve(c_bytes + scratch_bytes);
    auto* const c = reinterpret_cast<float*>(scratch + scratch_bytes);  // [panels, rows of the block, 64]
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first_panel = task % panel_blocks * blocking.panels;
      const int64_t panels = std::min(blocking.panels, weight.panel_count() - first_panel);
      const int64_t first_row = task / panel_blocks * blocking.rows;
      const int64_t rows = std::min(x.rows - first_row, blocking.rows);
      for (int64_t step = 0; step < weight.steps(); step += blocking.steps) {
        for (int64_t panel = first_panel; panel < first_panel + panels; ++panel) {
          product({.left = left.at(first_row, step),
                   .left_stride = left.stride,
                   .tiled_left = left.tiled(),
                   .panel = weight.panel(panel, step),
                   .next = panel + 1 < weight.panel_count() ? weight.panel(panel + 1, step) : nullptr,
                   .steps = std::min(blocking.steps, weight.steps() - step),
                   .rows = static_cast<int>(rows),
                   .c = c + (panel - first_panel) * blocking.rows * kPanelColumns,
                   .accumulate = step > 0,
                   .scratch = scratch});
        }
      }
      for (int64_t panel = first_panel; panel < first_panel + panels; ++panel) {
        const int64_t feature = panel * weight.panel_features();
        const int64_t features = std::min(weight.panel_features(), weight.out_features() - feature);
        float* sums = c + (panel - first_panel) * blocking.rows * kPanelColumns;
        for (int64_t row = first_row; row < first_row + rows; ++row, sums += kPanelColumns) {
          finish(row, feature, features, sums);
        }
      }
    }
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
