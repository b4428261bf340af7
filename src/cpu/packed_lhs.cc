#include "cpu/packed_lhs.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::Matrix;

/// Copies rows into tiles (see GemmTask), so that kernels need not load 16 distant cache lines.
PackedLhs pack_tiled_lhs(Device& device, const Matrix& x, int64_t steps) {
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

/// Returns the bytes of a group of an 8-bit LHS row.
size_t int8_group_bytes(const Device& device, PanelFormat format) {
  return static_cast<size_t>(format == PanelFormat::kCodes ? kCodeLhsUnitBytes : device.kernels.int8_lhs_group_bytes);
}

/// Quantizes a row in groups for panels of `format`.
void quantize_groups(const Device& device, PanelFormat format, const float* values, int64_t count, std::byte* out) {
  (format == PanelFormat::kCodes ? device.kernels.quantize_lhs_codes : device.kernels.quantize_lhs)(values, count, out);
}

/// Returns the bytes of an element of an LHS row that is not of 8 bits.
size_t element_bytes(const Device& device, const PanelLayout& layout) {
  return layout.format == PanelFormat::kF32 ? sizeof(float) : device.lhs_element_bytes();
}

/// Returns the bytes per step of an LHS row that is not tiled.
size_t row_step_bytes(const Device& device, const PanelLayout& layout) {
  constexpr size_t kGroupSteps = kW8GroupElements / kInt8Depth;
  if (layout.has_int8_groups()) return int8_group_bytes(device, layout.format) / kGroupSteps;
  if (layout.format == PanelFormat::kW8A8Channel) return static_cast<size_t>(device.kernels.channel_step_bytes);
  return static_cast<size_t>(layout.depth) * element_bytes(device, layout);
}

/// Returns a copy of x in scratch with the zeros of the layout between the shards.
Matrix spread_shards(Device& device, const Matrix& x, const PanelLayout& layout) {
  Matrix spread{.data = nullptr, .dtype = x.dtype, .rows = x.rows, .cols = layout.padded_inputs()};
  spread.data = device.spread_rows.reserve(spread.bytes());
  const size_t size = tensor::size_of(x.dtype);
  device.for_rows(x.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      auto* const to = row_of<std::byte>(spread, row);
      std::memset(to, 0, static_cast<size_t>(spread.cols) * size);
      for (const PanelShard& shard : layout.shards) {
        std::memcpy(to + static_cast<size_t>(shard.first_step * layout.depth + shard.skew) * size,
                    row_of<std::byte>(x, row) + static_cast<size_t>(shard.first_input) * size,
                    static_cast<size_t>(shard.inputs) * size);
      }
    }
  });
  return spread;
}

/// Moves an 8-bit row to its position in the tiles of its 16 rows.
void scatter_row(const std::byte* row, int64_t groups, std::byte* tiles, int64_t place) {
  constexpr size_t kFactors = size_t{kTileHeight} * kW8GroupElements;
  const auto at = static_cast<size_t>(place);
  for (int64_t group = 0; group < groups; ++group, tiles += kInt8LhsTileBytes) {
    std::memcpy(tiles + at * kW8GroupElements, row, kW8GroupElements);
    row += kW8GroupElements;
    LhsQuantParams quant_params;
    std::memcpy(&quant_params, row, sizeof(quant_params));
    row += sizeof(quant_params);
    std::memcpy(tiles + kFactors + at * sizeof(float), &quant_params.scale, sizeof(float));
    std::memcpy(tiles + kFactors + (kTileHeight + at) * sizeof(float), &quant_params.compensation, sizeof(int32_t));
  }
}

/// Quantizes rows to 8 bits with a scale per group; tiled when many rows meet tile kernels.
PackedLhs quantize_lhs(Device& device, const Matrix& x, const PanelLayout& layout) {
  const int64_t groups = tensor::w8_groups(x.cols);
  const size_t row_bytes = static_cast<size_t>(groups) * int8_group_bytes(device, layout.format);
  const bool tiled = device.kernels.tiles && x.rows > kTileHeight;
  const size_t stride = tiled ? static_cast<size_t>(groups) * kInt8LhsTileBytes : row_bytes;
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
      quantize_groups(device, layout.format, values, x.cols, rounded);
      if (tiled) {
        scatter_row(rounded, groups, copy + static_cast<size_t>(row / kTileHeight) * stride, row % kTileHeight);
      }
    }
  });
  return {.data = copy,
          .stride = stride,
          .step_stride = tiled ? kInt8LhsTileBytes / (kW8GroupElements / kInt8Depth) : size_t{0},
          .row_step_bytes = row_step_bytes(device, layout)};
}

/// Returns the bytes of `count` quant_params, padded to align the rows that follow.
size_t channel_quant_param_bytes(int64_t count) {
  return (static_cast<size_t>(count) * sizeof(LhsQuantParams) + 63) / 64 * 64;
}

size_t channel_run_bytes(const Device& device) {
  return static_cast<size_t>(kChannelRunSteps * device.kernels.channel_step_bytes);
}

/// Quantizes rows to 8 bits with a scale per row; tiled when many rows meet tile kernels. `magnitudes` [rows] are those
/// of whole rows, of which x has a part; null: x has the whole rows.
PackedLhs quantize_lhs_rows(Device& device, const Matrix& x, const PanelLayout& layout, const float* magnitudes) {
  const auto runs = static_cast<size_t>(layout.steps / kChannelRunSteps);
  const size_t run_bytes = channel_run_bytes(device);
  const bool tiled = device.kernels.tiles && x.rows > kTileHeight;
  const int64_t padded_rows = tiled ? round_up(x.rows, kTileHeight) : x.rows;
  const size_t quant_param_bytes = channel_quant_param_bytes(x.rows * std::ssize(layout.shards));
  std::byte* const scratch =
      device.shared_scratch.reserve(quant_param_bytes + static_cast<size_t>(padded_rows) * runs * run_bytes);
  auto* const quant_params = reinterpret_cast<LhsQuantParams*>(scratch);
  std::byte* const rows = scratch + quant_param_bytes;
  const size_t run_stride = tiled ? run_bytes * kTileHeight : run_bytes;
  device.for_rows(x.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const auto at = static_cast<size_t>(row);
      std::byte* const to = tiled ? rows + (at / kTileHeight * runs * kTileHeight + at % kTileHeight) * run_bytes
                                  : rows + at * runs * run_bytes;
      const auto* const from = row_of<std::byte>(x, row);
      const bool bf16 = x.dtype == DType::kBF16;
      const float largest =
          magnitudes != nullptr ? magnitudes[row] : device.kernels.largest_magnitude(from, bf16, x.cols);
      LhsQuantParams* of_row = quant_params + row;
      for (const PanelShard& shard : layout.shards) {
        const auto first_run = static_cast<size_t>(shard.first_step / kChannelRunSteps);
        *of_row =
            device.kernels.quantize_lhs_part(from + static_cast<size_t>(shard.first_input) * tensor::size_of(x.dtype),
                                             bf16, shard.inputs, largest, to + first_run * run_stride, run_stride);
        of_row += x.rows;
      }
    }
  });
  return {.data = rows,
          .stride = runs * run_stride,
          .step_stride = tiled ? run_stride / kChannelRunSteps : size_t{0},
          .row_step_bytes = row_step_bytes(device, layout),
          .quant_params = quant_params};
}

}  // namespace

PackedLhs pack_lhs(Device& device, const Matrix& given, const PanelLayout& layout, const float* magnitudes) {
  if (layout.format == PanelFormat::kW8A8Channel) return quantize_lhs_rows(device, given, layout, magnitudes);
  const Matrix x = layout.is_contiguous() ? given : spread_shards(device, given, layout);
  if (layout.has_int8_groups()) return quantize_lhs(device, x, layout);
  const int64_t padded = layout.padded_inputs();
  const bool is_f32 = layout.format == PanelFormat::kF32;
  const bool widened = device.compute_dtype == DType::kBF16 && (is_f32 || !device.kernels.bf16_lhs);
  const size_t element = element_bytes(device, layout);
  if (device.tiles() && !is_f32 && x.rows > kTileHeight) return pack_tiled_lhs(device, x, layout.steps);
  PackedLhs lhs{.data = x.data,
                .stride = static_cast<size_t>(padded) * element,
                .row_step_bytes = row_step_bytes(device, layout)};
  if (!widened && padded == x.cols) return lhs;
  std::byte* const copy = device.shared_scratch.reserve(static_cast<size_t>(x.rows) * lhs.stride);
  device.pool.run_ranges(x.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      std::byte* to = copy + static_cast<size_t>(row) * lhs.stride;
      const size_t used = static_cast<size_t>(x.cols) * element;
      if (widened) {
        device.kernels.widen(row_of<std::byte>(x, row), reinterpret_cast<float*>(to), x.cols);
      } else {
        std::memcpy(to, row_of<std::byte>(x, row), used);
      }
      std::memset(to + used, 0, lhs.stride - used);
    }
  });
  lhs.data = copy;
  return lhs;
}

LhsPacker::LhsPacker(const Device& device, const PanelLayout& layout, int64_t cols)
    : device_(device),
      format_(layout.format),
      has_int8_groups_(layout.has_int8_groups()),
      may_tile_(has_int8_groups_ || format_ == PanelFormat::kW8A8Channel ? device.kernels.tiles : device.tiles()),
      widened_(!has_int8_groups_ && device.compute_dtype == DType::kBF16 && !device.kernels.bf16_lhs),
      cols_(cols) {
  CHECK(layout.shards.size() == 1, "an operand for {} shards is packed from a whole matrix", layout.shards.size());
  const int64_t padded = layout.padded_inputs();
  groups_ = (padded + kW8GroupElements - 1) / kW8GroupElements;
  if (format_ == PanelFormat::kW8A8Channel) {
    groups_ = layout.steps / kChannelRunSteps;
    group_bytes_ = channel_run_bytes(device);
    row_bytes_ = static_cast<size_t>(groups_) * group_bytes_ + sizeof(LhsQuantParams);
    tile_bytes_ = kTileHeight * group_bytes_;
    return;
  }
  if (has_int8_groups_) {
    group_bytes_ = int8_group_bytes(device, format_);
    row_bytes_ = static_cast<size_t>(groups_) * group_bytes_;
    tile_bytes_ = kInt8LhsTileBytes;
  } else {
    group_bytes_ = kW8GroupElements * device.lhs_element_bytes();
    row_bytes_ = static_cast<size_t>(padded) * device.lhs_element_bytes();
    tile_bytes_ = kTileHeight * group_bytes_;
  }
  CHECK(group_bytes_ <= kMaxGroupBytes && (!may_tile_ || has_int8_groups_ || padded % kW8GroupElements == 0),
        "groups of {} bytes, rows of {} elements", group_bytes_, padded);
}

size_t LhsPacker::quant_param_bytes(int64_t rows) const {
  return format_ == PanelFormat::kW8A8Channel ? channel_quant_param_bytes(rows) : 0;
}

size_t LhsPacker::bytes(int64_t rows) const {
  const auto tiles_of_rows = static_cast<size_t>((rows + kTileHeight - 1) / kTileHeight);
  const size_t bytes =
      tiles(rows) ? tiles_of_rows * static_cast<size_t>(groups_) * tile_bytes_ : static_cast<size_t>(rows) * row_bytes_;
  return quant_param_bytes(rows) + (bytes + 63) / 64 * 64;
}

size_t LhsPacker::max_bytes(int64_t rows, int64_t operands) const {
  // Tiled operands have more than a tile's rows, and at most a tile's of padding.
  const int64_t tiled = may_tile_ ? std::min(operands, rows / (kTileHeight + 1)) : 0;
  const size_t tiled_row = static_cast<size_t>(groups_) * tile_bytes_ / kTileHeight;
  return static_cast<size_t>(rows + tiled * kTileHeight) * std::max(row_bytes_, may_tile_ ? tiled_row : 0) +
         static_cast<size_t>(std::min(operands, rows)) * (has_groups() ? 64 : 128) + quant_param_bytes(rows);
}

PackedLhs LhsPacker::view(LhsBuffer operand) const {
  const std::byte* const rows = operand.data + quant_param_bytes(operand.rows);
  const auto* const quant_params =
      format_ == PanelFormat::kW8A8Channel ? reinterpret_cast<const LhsQuantParams*>(operand.data) : nullptr;
  if (!tiles(operand.rows)) {
    const size_t stride = has_groups() ? row_bytes_ : row_bytes_ - sizeof(LhsQuantParams);
    return {.data = rows, .stride = stride, .quant_params = quant_params};
  }
  const size_t step_stride =
      has_int8_groups_ ? kInt8LhsTileBytes / (kW8GroupElements / kInt8Depth) : size_t{kTileHeight} * 4;
  return {.data = rows,
          .stride = static_cast<size_t>(groups_) * tile_bytes_,
          .step_stride = step_stride,
          .quant_params = quant_params};
}

void LhsPacker::encode_row(const Matrix& x, int64_t row, float* widened, std::byte* out) const {
  const auto* from = row_of<std::byte>(x, row);
  if (format_ == PanelFormat::kW8A8Channel) {
    const LhsQuantParams quant_params =
        device_.kernels.quantize_lhs_row(from, x.dtype == DType::kBF16, cols_, out, group_bytes_);
    std::memcpy(out + row_bytes_ - sizeof(quant_params), &quant_params, sizeof(quant_params));
    return;
  }
  if (has_int8_groups_) {
    if (x.dtype != DType::kF32) device_.kernels.widen(from, widened, cols_);
    quantize_groups(device_, format_, x.dtype == DType::kF32 ? row_of<float>(x, row) : widened, cols_, out);
    return;
  }
  const size_t used = static_cast<size_t>(cols_) * device_.lhs_element_bytes();
  if (widened_) {
    device_.kernels.widen(from, reinterpret_cast<float*>(out), cols_);
  } else {
    std::memcpy(out, from, used);
  }
  std::memset(out + used, 0, row_bytes_ - used);
}

void LhsPacker::encode_group(float* values, std::byte* out) const {
  CHECK(has_groups(), "a group has no scale of its own");
  const Kernels& kernels = device_.kernels;
  if (device_.compute_dtype == DType::kBF16) {
    uint16_t narrow[kW8GroupElements];
    kernels.narrow(values, narrow, kW8GroupElements);
    const auto* bytes = reinterpret_cast<const std::byte*>(narrow);
    if (!has_int8_groups_ && !widened_) {
      std::memcpy(out, bytes, sizeof(narrow));
      return;
    }
    kernels.widen(bytes, values, kW8GroupElements);
  }
  if (has_int8_groups_) {
    quantize_groups(device_, format_, values, kW8GroupElements, out);
  } else {
    std::memcpy(out, values, kW8GroupElements * sizeof(float));
  }
}

void LhsPacker::put_row(const std::byte* encoded, LhsBuffer to, int64_t row) const {
  const auto at = static_cast<size_t>(row);
  if (format_ == PanelFormat::kW8A8Channel) {
    const size_t values = row_bytes_ - sizeof(LhsQuantParams);
    std::memcpy(to.data + at * sizeof(LhsQuantParams), encoded + values, sizeof(LhsQuantParams));
    if (!tiles(to.rows)) {
      std::memcpy(to.data + quant_param_bytes(to.rows) + at * values, encoded, values);
      return;
    }
  } else if (!tiles(to.rows)) {
    std::memcpy(to.data + at * row_bytes_, encoded, row_bytes_);
    return;
  }
  for (int64_t group = 0; group < groups_; ++group, encoded += group_bytes_) put_group(encoded, to, row, group);
}

void LhsPacker::put_group(const std::byte* encoded, LhsBuffer to, int64_t row, int64_t group) const {
  const auto at = static_cast<size_t>(group);
  if (!tiles(to.rows)) {
    const size_t begin = at * group_bytes_;
    std::memcpy(to.data + static_cast<size_t>(row) * row_bytes_ + begin, encoded,
                std::min(group_bytes_, row_bytes_ - begin));
    return;
  }
  const size_t tile_row = static_cast<size_t>(row) / kTileHeight;
  std::byte* const tile =
      to.data + quant_param_bytes(to.rows) + (tile_row * static_cast<size_t>(groups_) + at) * tile_bytes_;
  const int64_t place = row % kTileHeight;
  if (has_int8_groups_) {
    scatter_row(encoded, 1, tile, place);
  } else {
    std::memcpy(tile + static_cast<size_t>(place) * group_bytes_, encoded, group_bytes_);
  }
}

}  // namespace millrace::cpu
