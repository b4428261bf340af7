#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::Matrix;

/// Rows that pass over a panel while it is in the cache.
constexpr int64_t kRowBlock = 128;

/// The left operand of a product: rows of whole steps in the format that the kernels read.
struct Left {
  const std::byte* data = nullptr;
  size_t stride = 0;
  bool tiled = false;
};

/// Copies rows into tiles (see ProductTask), which spares the kernels loads of 16 far apart lines.
Left tile_left(Device& device, const Matrix& x, int64_t steps) {
  const size_t tiles = static_cast<size_t>(steps) / kTileHeight;
  const size_t row_bytes = static_cast<size_t>(x.cols) * 2;
  std::byte* const copy =
      device.shared_scratch.reserve(static_cast<size_t>(round_up(x.rows, kTileHeight)) * tiles * 64);
  device.pool.run_ranges(x.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const std::byte* from = row_of<std::byte>(x, row);
      std::byte* to = copy + (static_cast<size_t>(row / kTileHeight) * tiles * kTileHeight +
                              static_cast<size_t>(row % kTileHeight)) * 64;
      for (size_t tile = 0; tile < tiles; ++tile, to += kTileHeight * 64) {
        const size_t used = std::min<size_t>(64, row_bytes - std::min(row_bytes, tile * 64));
        std::memcpy(to, from + tile * 64, used);
        if (used < 64) std::memset(to + used, 0, 64 - used);
      }
    }
  });
  return {copy, tiles * 64, true};
}

/// Uses x itself where it already is in the kernels' format; otherwise a copy in scratch, widened or padded with zeros.
Left prepare_left(Device& device, const Matrix& x, const PanelLayout& layout) {
  const int64_t padded = layout.steps * layout.depth;
  const bool widened = device.compute_dtype == DType::kBF16 && !device.kernels.bf16_left;
  if (device.tiles() && x.rows > kTileHeight) return tile_left(device, x, layout.steps);
  if (!widened && padded == x.cols) return {x.data, static_cast<size_t>(x.cols) * device.left_size()};
  const size_t stride = static_cast<size_t>(padded) * device.left_size();
  std::byte* const copy = device.shared_scratch.reserve(static_cast<size_t>(x.rows) * stride);
  device.pool.run_ranges(x.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      std::byte* to = copy + static_cast<size_t>(row) * stride;
      const size_t used = static_cast<size_t>(x.cols) * device.left_size();
      if (widened) {
        device.kernels.widen(row_of<std::byte>(x, row), reinterpret_cast<float*>(to), x.cols);
      } else {
        std::memcpy(to, row_of<std::byte>(x, row), used);
      }
      std::memset(to + used, 0, stride - used);
    }
  });
  return {copy, stride};
}

auto product_kernel(const Device& device, const PanelLayout& layout) {
  const Kernels& kernels = device.kernels;
  if (layout.w8) return device.bf16_left() ? kernels.product_w8_bf16 : kernels.product_w8_f32;
  return device.compute_dtype == DType::kBF16 ? kernels.product_bf16 : kernels.product_f32;
}

/// Computes every panel for every block of rows and hands each result to finish(row, first feature, feature count, c),
/// where c holds the 64 sums of that row and panel.
template <class Finish>
void for_each_product(Device& device, const Matrix& x, const CpuPackedWeight& weight, const Finish& finish) {
  check_matrix("x", x, device.compute_dtype, x.rows, weight.in_features());
  const Left left = prepare_left(device, x, weight.layout());
  const auto product = product_kernel(device, weight.layout());
  const int64_t row_blocks = (x.rows + kRowBlock - 1) / kRowBlock;
  const int64_t panels = weight.panel_count();
  device.pool.run_ranges(row_blocks * panels, [&](int64_t begin, int64_t end, int slot) {
    static_assert(kRowBlock % kTileHeight == 0);
    alignas(64) float c[kRowBlock * kPanelColumns];  // [rows of the block, 64]
    std::byte* const scratch =
        weight.layout().w8 ? device.slot_scratch[static_cast<size_t>(slot)].reserve(kW8ScratchBytes) : nullptr;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t panel = task % panels;
      const int64_t first_row = task / panels * kRowBlock;
      const int64_t end_row = std::min(x.rows, first_row + kRowBlock);
      product({.left = left.data + static_cast<size_t>(first_row) * left.stride,
               .left_stride = left.stride,
               .tiled_left = left.tiled,
               .panel = weight.panel(panel),
               .steps = weight.steps(),
               .rows = static_cast<int>(end_row - first_row),
               .c = c,
               .scratch = scratch});
      const int64_t feature = panel * weight.panel_features();
      const int64_t features = std::min(weight.panel_features(), weight.out_features() - feature);
      for (int64_t row = first_row; row < end_row; ++row) {
        finish(row, feature, features, c + (row - first_row) * kPanelColumns);
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
