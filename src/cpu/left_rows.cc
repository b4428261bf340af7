#include "cpu/left_rows.h"

#include <cstring>

#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::Matrix;

/// Copies rows into tiles (see ProductTask), which spares the kernels loads of 16 far apart lines.
LeftRows tile_left(Device& device, const Matrix& x, int64_t steps) {
  const size_t tiles = static_cast<size_t>(steps) / kTileHeight;
  const size_t row_bytes = static_cast<size_t>(x.cols) * 2;
  std::byte* const copy =
      device.shared_scratch.reserve(static_cast<size_t>(round_up(x.rows, kTileHeight)) * tiles * 64);
  device.pool.run_ranges(x.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const std::byte* from = row_of<std::byte>(x, row);
      std::byte* to =
          copy +
          (static_cast<size_t>(row / kTileHeight) * tiles * kTileHeight + static_cast<size_t>(row % kTileHeight)) * 64;
      const size_t whole = row_bytes / 64;
      for (size_t tile = 0; tile < whole; ++tile) std::memcpy(to + tile * kTileHeight * 64, from + tile * 64, 64);
      if (whole == tiles) continue;
      std::memcpy(to + whole * kTileHeight * 64, from + whole * 64, row_bytes % 64);
      std::memset(to + whole * kTileHeight * 64 + row_bytes % 64, 0, 64 - row_bytes % 64);
    }
  });
  return {copy, tiles * 64 * kTileHeight, kTileHeight * 4};
}

/// Moves a row of 8 bits to its place in the tiles of its 16 rows.
void scatter_row(const std::byte* row, int64_t groups, std::byte* tiles, int64_t place) {
  constexpr size_t kFactors = size_t{kTileHeight} * kW8GroupElements;
  const auto at = static_cast<size_t>(place);
  for (int64_t group = 0; group < groups; ++group, tiles += kInt8LeftTileBytes) {
    std::memcpy(tiles + at * kW8GroupElements, row, kW8GroupElements);
    row += kW8GroupElements;
    Int8Factors factors;
    std::memcpy(&factors, row, sizeof(factors));
    row += sizeof(factors);
    std::memcpy(tiles + kFactors + at * sizeof(float), &factors.scale, sizeof(float));
    std::memcpy(tiles + kFactors + (kTileHeight + at) * sizeof(float), &factors.correction, sizeof(int32_t));
  }
}

/// Rows of 8 bits, each group rounded by its own scale; tiled where many meet tiles.
LeftRows round_left(Device& device, const Matrix& x) {
  const int64_t groups = tensor::w8_groups(x.cols);
  const size_t row_bytes = static_cast<size_t>(groups) * static_cast<size_t>(device.kernels.int8_left_bytes);
  const bool tiled = device.kernels.tiles && x.rows > kTileHeight;
  const size_t stride = tiled ? static_cast<size_t>(groups) * kInt8LeftTileBytes : row_bytes;
  const int64_t strides = tiled ? (x.rows + kTileHeight - 1) / kTileHeight : x.rows;
  std::byte* const copy = device.shared_scratch.reserve(static_cast<size_t>(strides) * stride);
  device.pool.run_ranges(x.rows, [&](int64_t begin, int64_t end, int slot) {
    const size_t wide_bytes = static_cast<size_t>(round_up(x.cols, kPanelColumns)) * sizeof(float);
    std::byte* const scratch = device.slot_scratch[static_cast<size_t>(slot)].reserve(wide_bytes + row_bytes);
    for (int64_t row = begin; row < end; ++row) {
      auto* values = reinterpret_cast<float*>(scratch);
      if (x.dtype == DType::kF32) {
        values = row_of<float>(x, row);
      } else {
        device.kernels.widen(row_of<std::byte>(x, row), values, x.cols);
      }
      std::byte* const rounded = tiled ? scratch + wide_bytes : copy + static_cast<size_t>(row) * stride;
      device.kernels.round_left(values, x.cols, rounded);
      if (tiled) {
        scatter_row(rounded, groups, copy + static_cast<size_t>(row / kTileHeight) * stride, row % kTileHeight);
      }
    }
  });
  return {copy, stride, tiled ? kInt8LeftTileBytes / (kW8GroupElements / kInt8Depth) : size_t{0}};
}

}  // namespace

LeftRows prepare_left(Device& device, const Matrix& x, const PanelLayout& layout) {
  if (layout.format == PanelFormat::kInt8) return round_left(device, x);
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

}  // namespace millrace::cpu
