#include "cpu/code_panel_layout.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "cpu/code_runs.h"

namespace millrace::cpu {
namespace {

using tensor::CodeHalfScales;
using tensor::CodeMatrix;
using tensor::CodeOffsets;
using tensor::CodeValues;
using tensor::DType;
using tensor::kCodeUnit;

static_assert(kCodeUnit == kW8GroupElements);

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
  const bool has_halves =
      std::ranges::any_of(parts, [](const CodeMatrix& part) { return part.half_kind == CodeHalfScales::kInt8; });
  for (const int bits : {2, 3, 5, 6}) {
    if (bits != 6 && has_halves != (bits < kNibbleBits)) continue;  // kernels have no others
    const int shift = shift_of(parts, bits);
    const auto fits = [bits, shift](const CodeMatrix& part) {
      const IntegerRange range = integer_range(part);
      const int own = part.offsets == CodeOffsets::kZeroPoints ? 0 : shift;
      return range.least + own >= 0 && range.most + own < 1 << bits;
    };
    if (std::ranges::all_of(parts, fits)) return bits;
  }
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
    format.has_half_minimums = format.has_half_minimums || part.half_minimums != nullptr;
  }
  if (!format.has_half_factors() || !format.has_factors) return;
  format.has_factors = false;
  format.scale_type = CodeScaleType::kF32;
}

/// Returns the most units whose columns share a scale in all parts, and that are whole in all shards but the last.
int units_per_group(std::span<const CodeMatrix> parts, const std::vector<PanelShard>& shards) {
  int64_t columns = kCodeUnit * kMaxCodeGroupUnits;
  const auto make_divide = [&columns](int64_t at) { columns = std::max(kCodeUnit, std::gcd(columns, at)); };
  for (const CodeMatrix& part : parts) {
    if (part.groups() > 1) make_divide(part.group);
    for (const PanelShard& shard : shards) {
      if (shard.skew != 0) return 1;
      if (part.groups() > 1) make_divide(part.first_col + shard.first_input);
    }
  }
  for (size_t i = 0; i + 1 < shards.size(); ++i) make_divide(shards[i].inputs);
  return static_cast<int>(columns / kCodeUnit);
}

}  // namespace

CodeScaleType code_scale_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return CodeScaleType::kF32;
    case DType::kBF16: return CodeScaleType::kBF16;
    case DType::kF16: return CodeScaleType::kF16;
  }
  return CodeScaleType::kF32;
}

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
  format.scale_type = code_scale_type(parts.front().scale_dtype);
  for (const CodeMatrix& part : parts) {
    if (code_scale_type(part.scale_dtype) != format.scale_type) format.scale_type = CodeScaleType::kF32;
  }
  set_factors(format, parts);
  CHECK(format.half_type == CodeHalfType::kNone ||
            (format.half_type == CodeHalfType::kE4M3) == (format.bits == kNibbleBits),
        "{}: codes of {} bits with factors of halves", parts.front().name, format.bits);
  const bool has_products = !format.has_factors && std::ranges::any_of(parts, [](const CodeMatrix& part) {
    return part.unit_scales != nullptr;
  });
  format.units = has_products ? 1 : units_per_group(parts, shards);
  assign_steps(layout, std::move(shards), format.units * kCodeUnit, kCodeUnit);
  layout.step_bytes = static_cast<size_t>(format.group_bytes() / (format.units * kCodeUnitSteps));
  const int64_t units = layout.steps / kCodeUnitSteps;
  layout.bytes = static_cast<size_t>((units + format.units - 1) / format.units * format.header_bytes() +
                                     units * format.unit_bytes());
  return layout;
}

}  // namespace millrace::cpu
