#include "cpu/w4_panels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::kW4Half;
using tensor::W4Matrix;
using tensor::W4Offsets;
using tensor::W4Values;

constexpr int64_t kUnit = tensor::kW4Unit;
static_assert(kUnit == kW8GroupElements);

W4ScaleType scale_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return W4ScaleType::kF32;
    case DType::kBF16: return W4ScaleType::kBF16;
    case DType::kF16: return W4ScaleType::kF16;
  }
  return W4ScaleType::kF32;
}

W4OffsetType offset_type_of(std::span<const W4Matrix> parts) {
  const auto has = [&](W4Offsets offsets) {
    return std::ranges::any_of(parts, [offsets](const W4Matrix& part) { return part.offsets == offsets; });
  };
  if (has(W4Offsets::kMinimums)) return W4OffsetType::kMinimums;
  return has(W4Offsets::kZeroPoints) ? W4OffsetType::kZeroPoints : W4OffsetType::kConstant;
}

/// Sets the integers of the codes, shifted to be unsigned.
void set_integers(W4PanelFormat& format, W4Values values) {
  format.offset = format.offset_type == W4OffsetType::kConstant ? 8 : 0;
  if (values == W4Values::kInteger) return;
  const std::array<int8_t, 16> integers = tensor::w4_integers(values, W4Offsets::kNone);
  format.has_table = true;
  format.offset = -*std::ranges::min_element(integers);
  for (size_t code = 0; code < integers.size(); ++code)
    format.table[code] = static_cast<uint8_t>(integers[code] + format.offset);
}

/// Returns the most units whose columns share a scale in all parts, and that are whole in all shards but the last.
int units_per_group(std::span<const W4Matrix> parts, const std::vector<PanelShard>& shards) {
  int64_t columns = kUnit * kMaxW4GroupUnits;
  const auto make_divide = [&columns](int64_t at) { columns = std::max(kUnit, std::gcd(columns, at)); };
  for (const W4Matrix& part : parts) {
    if (part.groups() > 1) make_divide(part.group);
    for (const PanelShard& shard : shards) {
      if (shard.skew != 0) return 1;
      if (part.groups() > 1) make_divide(part.first_col + shard.first_input);
    }
  }
  for (size_t i = 0; i + 1 < shards.size(); ++i) make_divide(shards[i].inputs);
  return static_cast<int>(columns / kUnit);
}

/// The codes and terms of one unit of a column.
struct UnitColumn {
  std::array<uint8_t, kUnit> codes{};
};

/// Reads the codes of stored columns [first, first + 32) of a row, of which a part exists.
UnitColumn read_codes(const W4Matrix& matrix, int64_t row, int64_t first, int64_t begin, int64_t end) {
  UnitColumn column;
  const uint8_t* const from = matrix.codes + row * matrix.row_bytes() + (matrix.first_col + first) / 2;
  for (int64_t i = begin; i < end; ++i) column.codes[static_cast<size_t>(i)] = from[i / 2] >> (i % 2 * 4) & 15;
  return column;
}

/// Writes codes to a column of a unit: bytes of the codes of an input and of that four further.
void write_codes(const UnitColumn& column, std::byte* unit, size_t at) {
  constexpr size_t kPair = 2 * kInt8Depth;
  for (size_t pair = 0; pair < kUnit / kPair; ++pair) {
    std::array<uint8_t, kInt8Depth> bytes;
    for (size_t i = 0; i < kInt8Depth; ++i)
      bytes[i] =
          static_cast<uint8_t>(column.codes[pair * kPair + i] | column.codes[pair * kPair + kInt8Depth + i] << 4);
    std::memcpy(unit + (pair * kPanelColumns + at) * kInt8Depth, bytes.data(), bytes.size());
  }
}

/// Writes element `at` of an array of scales or minimums, of another or the same type.
void write_scale(const W4PanelFormat& format, const std::byte* from, DType dtype, int64_t index, std::byte* to,
                 size_t at) {
  const auto bytes = static_cast<size_t>(format.scale_bytes());
  if (scale_type_of(dtype) == format.scale_type) {
    std::memcpy(to + at * bytes, from + static_cast<size_t>(index) * bytes, bytes);
    return;
  }
  CHECK(format.scale_type == W4ScaleType::kF32, "scales of several types are packed as f32");
  const tensor::HostTensor all{.dtype = dtype, .shape = {index + 1}, .data = from};
  float value = 0.0f;
  tensor::read_floats(all, index, 1, &value);
  std::memcpy(to + at * sizeof(float), &value, sizeof(value));
}

/// Writes what the columns of a group share.
void write_group(const W4PanelFormat& format, const W4Matrix& matrix, int64_t row, int64_t col, std::byte* group,
                 size_t at) {
  const int64_t index = row * matrix.groups() + (matrix.first_col + col) / matrix.group;
  write_scale(format, matrix.scales, matrix.scale_dtype, index, group, at);
  std::byte* const offsets = group + kPanelColumns * format.scale_bytes();
  switch (format.offset_type) {
    case W4OffsetType::kConstant: return;
    case W4OffsetType::kZeroPoints:
      offsets[at] = std::byte{matrix.zero_points != nullptr ? matrix.zero_points[index] : uint8_t{8}};
      return;
    case W4OffsetType::kMinimums: return write_scale(format, matrix.minimums, matrix.scale_dtype, index, offsets, at);
  }
}

void write_factors(const W4PanelFormat& format, const W4Matrix& matrix, int64_t row, int64_t col, std::byte* unit,
                   size_t at) {
  if (format.has_half_factors) {
    const uint8_t* const halves = matrix.half_scales + row * matrix.halves() + (matrix.first_col + col) / kW4Half;
    const int64_t left = matrix.halves() - (matrix.first_col + col) / kW4Half;
    for (size_t half = 0; half < 2 && static_cast<int64_t>(half) < left; ++half)
      unit[half * kPanelColumns + at] = static_cast<std::byte>(halves[half]);
    return;
  }
  if (!format.has_factors) return;
  const int64_t index = row * matrix.units() + (matrix.first_col + col) / kUnit;
  const auto factor = [index](const int8_t* factors) {
    return static_cast<std::byte>(factors != nullptr ? factors[index] : int8_t{1});
  };
  unit[at] = factor(matrix.unit_scales);
  if (format.offset_type == W4OffsetType::kMinimums) unit[kPanelColumns + at] = factor(matrix.unit_minimums);
}

}  // namespace

PanelLayout w4_panel_layout(std::span<const W4Matrix> parts, std::vector<PanelShard> shards, bool gate_up) {
  CHECK(!parts.empty() && fit_together_w4(parts), "matrices of 4 bits that do not fit together");
  PanelLayout layout{.depth = kInt8Depth, .format = PanelFormat::kW4, .gate_up = gate_up, .shards = {}, .w4 = {}};
  W4PanelFormat& format = layout.w4;
  format.offset_type = offset_type_of(parts);
  set_integers(format, parts.front().values);
  format.scale_type = scale_type_of(parts.front().scale_dtype);
  for (const W4Matrix& part : parts) {
    if (scale_type_of(part.scale_dtype) != format.scale_type) format.scale_type = W4ScaleType::kF32;
    format.has_factors = format.has_factors || part.unit_scales != nullptr;
    format.has_half_factors = part.half_scales != nullptr;
  }
  format.units = units_per_group(parts, shards);
  assign_steps(layout, std::move(shards), format.units * kUnit, kUnit);
  layout.step_bytes = static_cast<size_t>(format.group_bytes() / (format.units * kW4UnitSteps));
  const int64_t units = layout.steps / kW4UnitSteps;
  layout.bytes = static_cast<size_t>((units + format.units - 1) / format.units * format.header_bytes() +
                                     units * format.unit_bytes());
  return layout;
}

void pack_w4_panel(std::span<const SourceRow<W4Matrix>> rows, const CpuPackedWeight& weight, int64_t index) {
  const PanelLayout& layout = weight.layout();
  const W4PanelFormat& format = layout.w4;
  for (const PanelShard& shard : layout.shards) {
    std::byte* at = weight.panel(index, shard.first_step);
    std::byte* group = at;
    for (int64_t unit = 0; unit < shard.steps / kW4UnitSteps; ++unit) {
      const int64_t first = shard.first_input - shard.skew + unit * kUnit;
      const int64_t begin = std::max<int64_t>(shard.first_input - first, 0);
      const int64_t end = std::min<int64_t>(shard.first_input + shard.inputs - first, kUnit);
      const bool begins_group = unit % format.units == 0;
      if (begins_group) {
        group = at;
        at += format.header_bytes();
      }
      for (size_t column = 0; column < rows.size(); ++column) {
        const auto& [matrix, row] = rows[column];
        if (matrix == nullptr) continue;
        if (begins_group) write_group(format, *matrix, row, first, group, column);
        write_factors(format, *matrix, row, first, at, column);
        write_codes(read_codes(*matrix, row, first, begin, end), at + format.factor_bytes(), column);
      }
      at += format.unit_bytes();
    }
  }
}

}  // namespace millrace::cpu
