#include "cpu/code_panels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace millrace::cpu {
namespace {

using tensor::CodeHalfScales;
using tensor::CodeMatrix;
using tensor::CodeOffsets;
using tensor::CodeValues;
using tensor::DType;
using tensor::kCodeHalf;

constexpr int64_t kUnit = tensor::kCodeUnit;
static_assert(kUnit == kW8GroupElements);
constexpr int kByteOffset = 128;  // of integers that are stored as bytes
constexpr int kNibbleBits = 4;
constexpr int kFiveBits = 5;
constexpr int kByteBits = 8;

CodeScaleType scale_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return CodeScaleType::kF32;
    case DType::kBF16: return CodeScaleType::kBF16;
    case DType::kF16: return CodeScaleType::kF16;
  }
  return CodeScaleType::kF32;
}

CodeOffsetType offset_type_of(std::span<const CodeMatrix> parts) {
  const auto has = [&](CodeOffsets offsets) {
    return std::ranges::any_of(parts, [offsets](const CodeMatrix& part) { return part.offsets == offsets; });
  };
  if (has(CodeOffsets::kMinimums)) return CodeOffsetType::kMinimums;
  return has(CodeOffsets::kZeroPoints) ? CodeOffsetType::kZeroPoints : CodeOffsetType::kConstant;
}

/// The integers of a part before zero points are subtracted.
struct IntegerRange {
  int least;
  int most;
};

IntegerRange integer_range(const CodeMatrix& part) {
  if (part.bits == kNibbleBits) {
    const std::array<int8_t, 16> integers = tensor::code_integers(part.values, part.offsets);
    const auto [least, most] = std::ranges::minmax_element(integers);
    return {*least, *most};
  }
  const int count = 1 << part.integer_bits;
  return part.offsets == CodeOffsets::kNone ? IntegerRange{-count / 2, count / 2 - 1} : IntegerRange{0, count - 1};
}

/// Returns what is added to integers without zero points in codes of that many bits.
int shift_of(std::span<const CodeMatrix> parts, int bits) {
  const auto has_negative = [](const CodeMatrix& part) { return integer_range(part).least < 0; };
  return bits == kByteBits || std::ranges::any_of(parts, has_negative) ? 1 << (bits - 1) : 0;
}

/// Returns the bits of codes that hold the integers of all parts.
int panel_bits(std::span<const CodeMatrix> parts) {
  if (tensor::share_nibble_layout(parts)) return kNibbleBits;
  // Codes of 6 bits are bytes: on Zen 4 a GEMM of 4 rows unpacks them at 0.75 of that speed.
  const int shift = shift_of(parts, kFiveBits);
  const auto fits = [shift](const CodeMatrix& part) {
    const IntegerRange range = integer_range(part);
    const int own = part.offsets == CodeOffsets::kZeroPoints ? 0 : shift;
    return range.least + own >= 0 && range.most + own < 1 << kFiveBits;
  };
  if (std::ranges::all_of(parts, fits)) return kFiveBits;
  return kByteBits;
}

/// Sets the integers of the codes, shifted to be unsigned.
void set_integers(CodePanelFormat& format, std::span<const CodeMatrix> parts) {
  if (format.bits != kNibbleBits) {
    format.offset = format.offset_type == CodeOffsetType::kZeroPoints ? 0 : shift_of(parts, format.bits);
    return;
  }
  const CodeValues values = parts.front().values;
  format.offset = format.offset_type == CodeOffsetType::kConstant ? 8 : 0;
  if (values == CodeValues::kInteger) return;
  const std::array<int8_t, 16> integers = tensor::code_integers(values, CodeOffsets::kNone);
  format.has_table = true;
  format.offset = -*std::ranges::min_element(integers);
  for (size_t code = 0; code < integers.size(); ++code)
    format.table[code] = static_cast<uint8_t>(integers[code] + format.offset);
}

/// Sets the factors of units and halves. Where both occur, scales and minimums are products with those of units.
void set_factors(CodePanelFormat& format, std::span<const CodeMatrix> parts) {
  for (const CodeMatrix& part : parts) {
    format.has_factors = format.has_factors || part.unit_scales != nullptr;
    if (part.half_kind == CodeHalfScales::kE4M3) format.half_type = CodeHalfType::kE4M3;
    if (part.half_kind == CodeHalfScales::kInt8) format.half_type = CodeHalfType::kInt8;
  }
  if (!format.has_half_factors() || !format.has_factors) return;
  format.has_factors = false;
  format.scale_type = CodeScaleType::kF32;
}

/// Returns the most units whose columns share a scale in all parts, and that are whole in all shards but the last.
int units_per_group(std::span<const CodeMatrix> parts, const std::vector<PanelShard>& shards) {
  int64_t columns = kUnit * kMaxCodeGroupUnits;
  const auto make_divide = [&columns](int64_t at) { columns = std::max(kUnit, std::gcd(columns, at)); };
  for (const CodeMatrix& part : parts) {
    if (part.groups() > 1) make_divide(part.group);
    for (const PanelShard& shard : shards) {
      if (shard.skew != 0) return 1;
      if (part.groups() > 1) make_divide(part.first_col + shard.first_input);
    }
  }
  for (size_t i = 0; i + 1 < shards.size(); ++i) make_divide(shards[i].inputs);
  return static_cast<int>(columns / kUnit);
}

/// The codes of one unit of a column, or the shifted integers that a panel of more than 4 bits has in their place.
struct UnitColumn {
  std::array<uint8_t, kUnit> codes{};
};

/// Reads the codes of stored columns [first, first + 32) of a row, of which a part exists.
UnitColumn read_codes(const CodeMatrix& matrix, int64_t row, int64_t first, int64_t begin, int64_t end) {
  UnitColumn column;
  const uint8_t* const from = matrix.codes + row * matrix.row_bytes() + (matrix.first_col + first) * matrix.bits / 8;
  if (matrix.bits == 8) {
    std::copy(from + begin, from + end, column.codes.begin() + begin);
    return column;
  }
  for (int64_t i = begin; i < end; ++i) column.codes[static_cast<size_t>(i)] = from[i / 2] >> (i % 2 * 4) & 15;
  return column;
}

/// Returns the zero point of integers that are shifted in a panel with zero points.
uint8_t shared_zero_point(const CodePanelFormat& format) {
  return static_cast<uint8_t>(1 << (format.bits - 1));
}

/// Converts codes [begin, end) to those of a panel of more than 4 bits, whose integers are less by an offset or a zero
/// point.
void to_panel_codes(const CodePanelFormat& format, const CodeMatrix& matrix, int64_t begin, int64_t end,
                    UnitColumn& column) {
  const std::array<int8_t, 16> integers = tensor::code_integers(matrix.values, matrix.offsets);
  const bool has_zeros = matrix.offsets == CodeOffsets::kZeroPoints;  // otherwise panels have zero points, too
  CHECK(!has_zeros || format.offset_type == CodeOffsetType::kZeroPoints, "{} has zero points", matrix.name);
  const int shift = has_zeros                                           ? 0
                    : format.offset_type == CodeOffsetType::kZeroPoints ? shared_zero_point(format)
                                                                        : format.offset;
  int all = 0;
  for (int64_t i = begin; i < end; ++i) {
    uint8_t& code = column.codes[static_cast<size_t>(i)];
    const int integer = matrix.bits == kNibbleBits ? integers[code] : has_zeros ? code : code - kByteOffset;
    all |= integer + shift;
    code = static_cast<uint8_t>(integer + shift);
  }
  CHECK(all >> format.bits == 0, "{}: integers beyond {} bits", matrix.name, matrix.integer_bits);
}

/// Writes the lower four bits of codes to a column of a unit: bytes of an input and of that four further.
void write_nibbles(const UnitColumn& column, std::byte* unit, size_t at) {
  constexpr size_t kPair = 2 * kInt8Depth;
  for (size_t pair = 0; pair < kUnit / kPair; ++pair) {
    std::array<uint8_t, kInt8Depth> bytes;
    for (size_t i = 0; i < kInt8Depth; ++i)
      bytes[i] = static_cast<uint8_t>((column.codes[pair * kPair + i] & 15) |
                                      column.codes[pair * kPair + kInt8Depth + i] << 4);
    std::memcpy(unit + (pair * kPanelColumns + at) * kInt8Depth, bytes.data(), bytes.size());
  }
}

/// Writes the highest bits of codes of 5 bits: bytes of inputs that are four apart.
void write_high_bits(const UnitColumn& column, std::byte* unit, size_t at) {
  std::array<uint8_t, kInt8Depth> bytes{};
  for (size_t step = 0; step < kCodeUnitSteps; ++step) {
    const uint8_t* const codes = column.codes.data() + step * kInt8Depth;
    for (size_t i = 0; i < kInt8Depth; ++i) bytes[i] = static_cast<uint8_t>(bytes[i] | codes[i] >> 4 << step);
  }
  std::memcpy(unit + kUnitCodeBytes + at * kInt8Depth, bytes.data(), bytes.size());
}

void write_bytes(const UnitColumn& column, bool is_signed, std::byte* unit, size_t at) {
  const uint8_t flip = is_signed ? kByteOffset : 0;
  for (size_t step = 0; step < kCodeUnitSteps; ++step) {
    std::array<uint8_t, kInt8Depth> bytes;
    for (size_t i = 0; i < kInt8Depth; ++i) bytes[i] = column.codes[step * kInt8Depth + i] ^ flip;
    std::memcpy(unit + (step * kPanelColumns + at) * kInt8Depth, bytes.data(), bytes.size());
  }
}

/// Writes the codes of a unit of a column, as the panel has them.
void write_codes(const CodePanelFormat& format, const UnitColumn& column, bool is_signed, std::byte* unit, size_t at) {
  if (format.bits == kByteBits) return write_bytes(column, is_signed, unit, at);
  write_nibbles(column, unit, at);
  if (format.bits > kNibbleBits) write_high_bits(column, unit, at);
}

/// Writes element `at` of an array of scales or minimums, of another or the same type, times a factor.
void write_scale(const CodePanelFormat& format, const std::byte* from, DType dtype, int64_t index, float factor,
                 std::byte* to, size_t at) {
  const auto bytes = static_cast<size_t>(format.scale_bytes());
  if (scale_type_of(dtype) == format.scale_type && factor == 1.0f) {
    std::memcpy(to + at * bytes, from + static_cast<size_t>(index) * bytes, bytes);
    return;
  }
  CHECK(format.scale_type == CodeScaleType::kF32, "scales of several types are packed as f32");
  const tensor::HostTensor all{.dtype = dtype, .shape = {index + 1}, .data = from};
  float value = 0.0f;
  tensor::read_floats(all, index, 1, &value);
  value *= factor;  // exact: 11 bits of f16 times 7 of a factor
  std::memcpy(to + at * sizeof(float), &value, sizeof(value));
}

/// Writes what the columns of a group share.
void write_group(const CodePanelFormat& format, const CodeMatrix& matrix, int64_t row, int64_t col, std::byte* group,
                 size_t at) {
  const int64_t index = row * matrix.groups() + (matrix.first_col + col) / matrix.group;
  const int64_t unit = row * matrix.units() + (matrix.first_col + col) / kUnit;
  const auto factor = [&](const int8_t* factors) {
    return format.has_factors || factors == nullptr ? 1.0f : static_cast<float>(factors[unit]);
  };
  write_scale(format, matrix.scales, matrix.scale_dtype, index, factor(matrix.unit_scales), group, at);
  std::byte* const offsets = group + kPanelColumns * format.scale_bytes();
  switch (format.offset_type) {
    case CodeOffsetType::kConstant: return;
    case CodeOffsetType::kZeroPoints: {
      offsets[at] = std::byte{matrix.zero_points != nullptr ? matrix.zero_points[index] : shared_zero_point(format)};
      return;
    }
    case CodeOffsetType::kMinimums:
      if (matrix.minimums == nullptr) return;  // packed together with minimums: its own are zeros
      return write_scale(format, matrix.minimums, matrix.scale_dtype, index, factor(matrix.unit_minimums), offsets, at);
  }
}

/// Writes the factors of a unit of a column, which are 1 where only other columns have any.
void write_factors(const CodePanelFormat& format, const CodeMatrix& matrix, int64_t row, int64_t col, std::byte* unit,
                   size_t at) {
  if (format.has_half_factors()) {
    const int64_t first = (matrix.first_col + col) / kCodeHalf;
    for (int64_t half = 0; half < std::min<int64_t>(2, matrix.halves() - first); ++half) {
      const uint8_t factor =
          matrix.half_scales != nullptr ? matrix.half_scales[row * matrix.halves() + first + half] : uint8_t{1};
      unit[static_cast<size_t>(half) * kPanelColumns + at] = std::byte{factor};
    }
    return;
  }
  if (!format.has_factors) return;
  const int64_t index = row * matrix.units() + (matrix.first_col + col) / kUnit;
  const auto factor = [index](const int8_t* factors) {
    return static_cast<std::byte>(factors != nullptr ? factors[index] : int8_t{1});
  };
  unit[at] = factor(matrix.unit_scales);
  if (format.offset_type == CodeOffsetType::kMinimums) unit[kPanelColumns + at] = factor(matrix.unit_minimums);
}

}  // namespace

bool share_code_panels(const CodeMatrix& left, const CodeMatrix& right) {
  return share_code_layout(left, right) && panel_bits({&left, 1}) == panel_bits({&right, 1});
}

bool can_pack_codes(std::span<const CodeMatrix> parts) {
  const auto any = [&](auto&& has) { return std::ranges::any_of(parts, has); };
  const auto all = [&](auto&& has) { return std::ranges::all_of(parts, has); };
  const auto has_e4m3 = [](const CodeMatrix& part) { return part.half_kind == CodeHalfScales::kE4M3; };
  const auto has_zeros = [](const CodeMatrix& part) { return part.offsets == CodeOffsets::kZeroPoints; };
  const auto excludes_zeros = [](const CodeMatrix& part) {
    return part.offsets == CodeOffsets::kMinimums || part.half_kind != CodeHalfScales::kNone;
  };
  return (all(has_e4m3) || !any(has_e4m3)) && !(any(has_zeros) && any(excludes_zeros));
}

PanelLayout code_panel_layout(std::span<const CodeMatrix> parts, std::vector<PanelShard> shards, bool gate_up) {
  CHECK(!parts.empty() && can_pack_codes(parts), "matrices of codes that do not fit together");
  PanelLayout layout{.depth = kInt8Depth, .format = PanelFormat::kCodes, .gate_up = gate_up, .shards = {}, .codes = {}};
  CodePanelFormat& format = layout.codes;
  format.bits = static_cast<uint8_t>(panel_bits(parts));
  format.offset_type = offset_type_of(parts);
  set_integers(format, parts);
  format.scale_type = scale_type_of(parts.front().scale_dtype);
  for (const CodeMatrix& part : parts) {
    if (scale_type_of(part.scale_dtype) != format.scale_type) format.scale_type = CodeScaleType::kF32;
  }
  set_factors(format, parts);
  const bool has_products = !format.has_factors && std::ranges::any_of(parts, [](const CodeMatrix& part) {
    return part.unit_scales != nullptr;
  });
  format.units = has_products ? 1 : units_per_group(parts, shards);
  assign_steps(layout, std::move(shards), format.units * kUnit, kUnit);
  layout.step_bytes = static_cast<size_t>(format.group_bytes() / (format.units * kCodeUnitSteps));
  const int64_t units = layout.steps / kCodeUnitSteps;
  layout.bytes = static_cast<size_t>((units + format.units - 1) / format.units * format.header_bytes() +
                                     units * format.unit_bytes());
  return layout;
}

void pack_code_panel(std::span<const SourceRow<CodeMatrix>> rows, bool signed_codes, const CpuPackedWeight& weight,
                     int64_t index) {
  const PanelLayout& layout = weight.layout();
  const CodePanelFormat& format = layout.codes;
  for (const PanelShard& shard : layout.shards) {
    std::byte* at = weight.panel(index, shard.first_step);
    std::byte* group = at;
    for (int64_t unit = 0; unit < shard.steps / kCodeUnitSteps; ++unit) {
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
        UnitColumn codes = read_codes(*matrix, row, first, begin, end);
        if (format.bits > kNibbleBits) to_panel_codes(format, *matrix, begin, end, codes);
        write_codes(format, codes, signed_codes, at + format.factor_bytes(), column);
      }
      at += format.unit_bytes();
    }
  }
}

}  // namespace millrace::cpu
