#include "cpu/code_panels.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "cpu/code_panel_layout.h"
#include "cpu/code_runs.h"

namespace millrace::cpu {
namespace {

using tensor::CodeMatrix;
using tensor::CodeOffsets;
using tensor::DType;
using tensor::kCodeHalf;
using tensor::kCodeUnit;

constexpr int kByteOffset = 128;  // of integers that are stored as bytes

/// The codes of one unit of a column, or the shifted integers that a panel of other than 4 bits has in their place.
struct UnitColumn {
  std::array<uint8_t, kCodeUnit> codes{};
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

/// Converts codes [begin, end) to those of a panel of other than 4 bits, whose integers are less by an offset or a zero
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
  for (size_t pair = 0; pair < kCodeUnit / kPair; ++pair) {
    std::array<uint8_t, kInt8Depth> bytes;
    for (size_t i = 0; i < kInt8Depth; ++i)
      bytes[i] = static_cast<uint8_t>((column.codes[pair * kPair + i] & 15) |
                                      column.codes[pair * kPair + kInt8Depth + i] << 4);
    std::memcpy(unit + (pair * kPanelColumns + at) * kInt8Depth, bytes.data(), bytes.size());
  }
}

/// Writes codes of other than 4 bits to a column of a unit.
template <int kBits>
void write_runs(const UnitColumn& column, std::byte* unit, size_t at) {
  constexpr CodeRuns kRuns = code_runs(kBits);
  constexpr size_t kVectorColumns = kRunLineBytes / kInt8Depth;
  std::byte* to = unit + at / kVectorColumns * kRuns.vector_bytes() + at % kVectorColumns * kInt8Depth;
  const uint8_t* codes = column.codes.data();
  for (int run = 0; run < kRuns.count(); ++run, to += kRuns.bytes(), codes += kRuns.steps * kInt8Depth) {
    uint8_t lines[kRuns.lines][kInt8Depth];
    std::memcpy(lines, codes, sizeof(lines));
    for (int i = 0; i < kRuns.piece_count; ++i) {
      const CodePiece& piece = kRuns.pieces[i];
      for (int element = 0; element < kInt8Depth; ++element) {
        const int bits = codes[piece.step * kInt8Depth + element] >> piece.code_bit & ((1 << piece.count) - 1);
        uint8_t& byte = lines[piece.line][element];
        byte = static_cast<uint8_t>(byte | bits << piece.line_bit);
      }
    }
    for (int line = 0; line < kRuns.lines; ++line) std::memcpy(to + line * kRunLineBytes, lines[line], kInt8Depth);
  }
}

/// Writes the codes of a unit of a column, as the panel has them. Codes that are bytes become signed with `is_signed`.
void write_codes(const CodePanelFormat& format, UnitColumn& column, bool is_signed, std::byte* unit, size_t at) {
  if (format.bits == kNibbleBits) return write_nibbles(column, unit, at);
  if (format.bits == kTwoBitRuns.bits) return write_runs<kTwoBitRuns.bits>(column, unit, at);
  if (format.bits == kThreeBitRuns.bits) return write_runs<kThreeBitRuns.bits>(column, unit, at);
  if (format.bits == kFiveBitRuns.bits) return write_runs<kFiveBitRuns.bits>(column, unit, at);
  if (format.bits == kSixBitRuns.bits) return write_runs<kSixBitRuns.bits>(column, unit, at);
  if (is_signed) {
    for (uint8_t& code : column.codes) code ^= kByteOffset;
  }
  write_runs<kByteBits>(column, unit, at);
}

/// Writes element `at` of an array of scales or minimums, of another or the same type, times a factor.
void write_scale(const CodePanelFormat& format, const std::byte* from, DType dtype, int64_t index, float factor,
                 std::byte* to, size_t at) {
  const auto bytes = static_cast<size_t>(format.scale_bytes());
  if (code_scale_type(dtype) == format.scale_type && factor == 1.0f) {
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
  const int64_t unit = row * matrix.units() + (matrix.first_col + col) / kCodeUnit;
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
      if (!format.has_half_minimums) continue;
      const int8_t minimum_factor =
          matrix.half_minimums != nullptr ? matrix.half_minimums[row * matrix.halves() + first + half] : int8_t{1};
      unit[static_cast<size_t>(2 + half) * kPanelColumns + at] = static_cast<std::byte>(minimum_factor);
    }
    return;
  }
  if (!format.has_factors) return;
  const int64_t index = row * matrix.units() + (matrix.first_col + col) / kCodeUnit;
  const auto factor = [index](const int8_t* factors) {
    return static_cast<std::byte>(factors != nullptr ? factors[index] : int8_t{1});
  };
  unit[at] = factor(matrix.unit_scales);
  if (format.offset_type == CodeOffsetType::kMinimums) unit[kPanelColumns + at] = factor(matrix.unit_minimums);
}

}  // namespace

void pack_code_panel(std::span<const SourceRow<CodeMatrix>> rows, bool signed_codes, const CpuPackedWeight& weight,
                     int64_t index) {
  const PanelLayout& layout = weight.layout();
  const CodePanelFormat& format = layout.codes;
  for (const PanelShard& shard : layout.shards) {
    std::byte* at = weight.panel(index, shard.first_step);
    std::byte* group = at;
    for (int64_t unit = 0; unit < shard.steps / kCodeUnitSteps; ++unit) {
      const int64_t first = shard.first_input - shard.skew + unit * kCodeUnit;
      const int64_t begin = std::max<int64_t>(shard.first_input - first, 0);
      const int64_t end = std::min<int64_t>(shard.first_input + shard.inputs - first, kCodeUnit);
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
        if (format.bits != kNibbleBits) to_panel_codes(format, *matrix, begin, end, codes);
        write_codes(format, codes, signed_codes, at + format.factor_bytes(), column);
      }
      at += format.unit_bytes();
    }
  }
}

}  // namespace millrace::cpu
