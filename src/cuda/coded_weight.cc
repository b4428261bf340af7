#include "cuda/coded_weight.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "cuda/weight_layout.h"

namespace millrace::cuda {
namespace {

using tensor::CodeHalfScales;
using tensor::CodeMatrix;
using tensor::CodeOffsets;
using tensor::CodeValues;
using tensor::DType;
using tensor::W8Matrix;

/// The integer that stands for zero in 4-bit codes without zero points.
constexpr int16_t kMiddleCode = 8;
/// What kernels subtract from stored bytes.
constexpr int16_t kByteOffset = 128;

/// Returns the codes of a part; E4M3 as for inputs in bf16.
WeightCodes codes_of(const CodedPart& part) {
  if (part.fp8() != nullptr) return WeightCodes::kE4M3;
  if (part.w8() != nullptr || part.codes()->bits == 8) return WeightCodes::kInt8;
  return part.codes()->values == CodeValues::kInteger ? WeightCodes::kInt4 : WeightCodes::kTable4;
}

DType scale_dtype(const CodedPart& part) {
  if (part.w8() != nullptr) return part.w8()->scale_dtype;
  return part.codes()->unit_scales != nullptr ? DType::kF32 : part.codes()->scale_dtype;
}

bool has_offsets(const CodedPart& part, CodeOffsets offsets) {
  return part.codes() != nullptr && part.codes()->offsets == offsets;
}

/// Returns the scales of factors of 16 inputs.
CodeScales halves_of(CodeHalfScales kind) {
  return kind == CodeHalfScales::kE4M3 ? CodeScales::kE4M3Halves : CodeScales::kInt8Halves;
}

/// Returns whether a part fits kF16Factors.
bool has_f16_factors(const CodedPart& part) {
  const CodeMatrix* const matrix = part.codes();
  if (matrix == nullptr || matrix->unit_scales == nullptr || matrix->scale_dtype != DType::kF16) return false;
  if (matrix->offsets == CodeOffsets::kNone) return codes_of(part) != WeightCodes::kInt4;
  return matrix->offsets == CodeOffsets::kMinimums;
}

/// Returns the most compact scales that hold those of all parts.
CodeScales scales_of(std::span<const CodedPart> parts) {
  const CodedPart& first = parts.front();
  if (first.fp8() != nullptr) return CodeScales::kF32;
  if (first.codes() != nullptr && first.codes()->half_scales != nullptr) return halves_of(first.codes()->half_kind);
  if (std::ranges::all_of(parts, has_f16_factors)) return CodeScales::kF16Factors;
  const auto any_has = [parts](CodeOffsets offsets) {
    return std::ranges::any_of(parts, [offsets](const CodedPart& part) { return has_offsets(part, offsets); });
  };
  if (any_has(CodeOffsets::kMinimums)) return CodeScales::kF32Minimum;
  const DType dtype = scale_dtype(first);
  const bool is_one = std::ranges::all_of(parts, [dtype](const CodedPart& part) { return scale_dtype(part) == dtype; });
  if (!is_one || dtype == DType::kF32) return CodeScales::kF32Zero;
  const bool has_zeros = any_has(CodeOffsets::kZeroPoints);
  if (dtype == DType::kF16) return has_zeros ? CodeScales::kF16Zero : CodeScales::kF16;
  return has_zeros ? CodeScales::kBf16Zero : CodeScales::kBf16;
}

/// Returns what is subtracted from the codes of a group, as kernels read them.
int16_t zero_point(const CodedPart& part, int64_t row, int64_t col) {
  if (part.codes() == nullptr || part.codes()->values != CodeValues::kInteger) return 0;
  const CodeMatrix& matrix = *part.codes();
  const bool is_bytes = matrix.bits == 8;
  if (matrix.offsets == CodeOffsets::kNone) return is_bytes ? 0 : kMiddleCode;
  if (matrix.offsets == CodeOffsets::kMinimums) return 0;
  const int16_t zero = matrix.zero_points[row * matrix.groups() + (matrix.first_col + col) / matrix.group];
  return static_cast<int16_t>(is_bytes ? zero - kByteOffset : zero);
}

/// Returns the bits of the f16 minimum of a group; 0 where it has none.
uint16_t minimum_bits(const CodeMatrix& matrix, int64_t row, int64_t col) {
  uint16_t bits = 0;
  if (matrix.minimums == nullptr) return bits;
  std::memcpy(&bits, matrix.minimums + (row * matrix.groups() + (matrix.first_col + col) / matrix.group) * 2,
              sizeof(bits));
  return bits;
}

/// Returns the bits of a scale of 16 bits.
uint16_t scale_bits(const CodedPart& part, int64_t row, int64_t col) {
  uint16_t bits = 0;
  if (part.w8() != nullptr) {
    const W8Matrix& matrix = *part.w8();
    const int64_t group = matrix.per_channel_scales ? 0 : col / tensor::kW8Group;
    std::memcpy(&bits, matrix.scales + (row * matrix.groups() + group) * 2, sizeof(bits));
  } else {
    const CodeMatrix& matrix = *part.codes();
    std::memcpy(&bits, matrix.scales + (row * matrix.groups() + (matrix.first_col + col) / matrix.group) * 2,
                sizeof(bits));
  }
  return bits;
}

float scale_value(const CodedPart& part, int64_t row, int64_t col) {
  if (part.fp8() != nullptr) return part.fp8()->scale(row, col);
  if (part.codes() != nullptr) return part.codes()->scale(row, col);
  return part.w8()->scale(row, part.w8()->per_channel_scales ? 0 : col / tensor::kW8Group);
}

void put_scale(const CodedPart& part, CodeScales scales, int64_t row, int64_t col, std::byte* to) {
  const auto put = [to](const auto& value) { std::memcpy(to, &value, sizeof(value)); };
  switch (scales) {
    case CodeScales::kBf16:
    case CodeScales::kF16: return put(scale_bits(part, row, col));
    case CodeScales::kBf16Zero:
    case CodeScales::kF16Zero:
      return put(uint32_t{scale_bits(part, row, col)} << 16 | static_cast<uint16_t>(zero_point(part, row, col)));
    case CodeScales::kF32: return put(scale_value(part, row, col));
    case CodeScales::kF32Zero:
      return put(std::pair{scale_value(part, row, col), static_cast<float>(zero_point(part, row, col))});
    case CodeScales::kF32Minimum: return put(std::pair{scale_value(part, row, col), part.codes()->minimum(row, col)});
    case CodeScales::kE4M3Halves:
    case CodeScales::kInt8Halves: return put(part.codes()->group_scale(row, col));
    case CodeScales::kF16Factors:
      return put(uint32_t{minimum_bits(*part.codes(), row, col)} << 16 | scale_bits(part, row, col));
  }
}

/// Writes the factors of a unit of a row, behind the scale in `to`.
void put_factors(const CodeMatrix& matrix, const WeightFormat& format, int64_t row, int64_t col, int32_t half,
                 std::byte* to) {
  to += factors_offset(format, half);
  if (format.scales == CodeScales::kF16Factors) {
    const int64_t at = row * matrix.units() + (matrix.first_col + col) / tensor::kCodeUnit;
    const int8_t minimum = matrix.unit_minimums != nullptr ? matrix.unit_minimums[at] : int8_t{1};
    const std::array factors{matrix.unit_scales[at], minimum};
    std::memcpy(to, factors.data(), factors.size());
    return;
  }
  const int64_t first = (matrix.first_col + col) / tensor::kCodeHalf;
  const auto count = std::min<int64_t>(kUnitInputs / tensor::kCodeHalf, matrix.halves() - first);
  std::memcpy(to, matrix.half_scales + row * matrix.halves() + first, static_cast<size_t>(count));
}

/// Puts the codes of eight 4-bit weights into the order of dequantize.cuh.
uint32_t interleaved(const uint8_t* bytes) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= static_cast<uint32_t>(bytes[i] & 15) << 4 * i | static_cast<uint32_t>(bytes[i] >> 4) << (16 + 4 * i);
  }
  return word;
}

/// Returns the code of a weight of 8 bits and those of the columns after it.
const std::byte* codes_of_row(const CodedPart& part, int64_t row, int64_t col) {
  if (part.fp8() != nullptr) return part.fp8()->codes + row * part.fp8()->row_bytes + col;
  if (part.w8() != nullptr) return part.w8()->values + row * part.cols() + col;
  const CodeMatrix& matrix = *part.codes();
  return reinterpret_cast<const std::byte*>(matrix.codes + row * matrix.row_bytes() + matrix.first_col + col);
}

/// Writes the codes of `count` weights of 8 bits. Those of CodeMatrix are the integers of kInt8 plus 128.
void put_bytes(const CodedPart& part, const std::byte* from, int64_t count, std::byte* step, int32_t panel_row,
               int32_t half) {
  const std::byte sign = part.codes() != nullptr ? std::byte{kByteOffset} : std::byte{0};
  for (int64_t first = 0; first < count; first += kPartBytes) {
    std::byte* const to =
        step + part_offset(WeightCodes::kInt8, panel_row, half, static_cast<int32_t>(first / kPartBytes));
    const int64_t some = std::min<int64_t>(kPartBytes, count - first);
    for (int64_t i = 0; i < some; ++i) to[i] = from[first + i] ^ sign;
  }
}

/// Writes the codes of `count` weights, at most those of a unit.
void put_codes(const CodedPart& part, int64_t row, int64_t col, int64_t count, std::byte* step, int32_t panel_row,
               int32_t half) {
  if (part.codes() == nullptr || part.codes()->bits == 8) {
    return put_bytes(part, codes_of_row(part, row, col), count, step, panel_row, half);
  }
  const CodeMatrix& matrix = *part.codes();
  uint8_t bytes[kPartBytes] = {};
  std::memcpy(bytes, matrix.codes + row * matrix.row_bytes() + (matrix.first_col + col) / 2,
              static_cast<size_t>((count + 1) / 2));
  for (int32_t word = 0; word < kPartBytes / 4; ++word) {
    const uint32_t codes = interleaved(bytes + word * 4);
    std::memcpy(step + part_offset(WeightCodes::kInt4, panel_row, half, 0) + word * 4, &codes, sizeof(codes));
  }
}

/// Packs a row of a panel of kE4M3Both.
void pack_fp8_row(const CodedPart& part, int64_t row, std::span<const PackedColumns> columns, int32_t panel_row,
                  std::byte* to) {
  for (const PackedColumns& some : columns) {
    for (int64_t first = 0; first < some.count; first += kFp8StepInputs) {
      std::byte* const step = to + (some.packed + first) / kFp8StepInputs * kFp8StepBytes;
      const std::byte* const codes = codes_of_row(part, row, some.source + first);
      for (int32_t chunk = 0; chunk < kFp8StepInputs / kPartBytes; ++chunk) {
        std::memcpy(step + chunk_offset(panel_row, chunk), codes + chunk * kPartBytes, kPartBytes);
      }
      const float scale = part.fp8()->scale(row, some.source + first);
      std::memcpy(step + kPanelStepBytes + static_cast<size_t>(panel_row) * sizeof(scale), &scale, sizeof(scale));
    }
  }
}

std::vector<PackedColumns> all_columns(const CodedPart& part) {
  return {{.packed = 0, .source = 0, .count = part.cols()}};
}

}  // namespace

bool CodedPart::shares_scale(int64_t col, int64_t inputs) const {
  if (w8() != nullptr) return w8()->per_channel_scales || (inputs == tensor::kW8Group && col % inputs == 0);
  if (fp8() != nullptr) {
    const int64_t at = fp8()->first_col + col;
    return fp8()->column_blocks == 1 || (at % inputs == 0 && fp8()->block_cols % inputs == 0);
  }
  return is_within_group(codes()->unit_scales != nullptr ? tensor::kCodeUnit : codes()->group, col, inputs);
}

bool CodedPart::shares_group(int64_t col, int64_t inputs) const {
  return is_within_group(codes()->group, col, inputs);
}

bool CodedPart::is_within_group(int64_t group, int64_t col, int64_t inputs) const {
  const int64_t at = codes()->first_col + col;
  if (at % tensor::kCodeUnit != 0) return false;
  if (group >= codes()->stored_cols) return true;
  return at % inputs == 0 && group % inputs == 0;
}

std::vector<tensor::BFloat16> CodedPart::dequantized() const {
  std::vector<float> weights;
  if (w8() != nullptr) {
    weights = tensor::dequantize(*w8());
  } else if (fp8() != nullptr) {
    weights = tensor::decode(*fp8());
  } else {
    weights.resize(static_cast<size_t>(rows() * cols()));
    for (int64_t row = 0; row < rows(); ++row) {
      tensor::read_floats(*codes(), row, 0, cols(), weights.data() + row * cols());
    }
  }
  std::vector<tensor::BFloat16> rounded(weights.size());
  std::ranges::transform(weights, rounded.begin(), tensor::BFloat16::from_float);
  return rounded;
}

bool can_pack(const CodedPart& part, std::span<const PackedColumns> columns) {
  return std::ranges::all_of(columns, [&part](const PackedColumns& some) {
    return some.count == 0 || part.shares_scale(some.source, kUnitInputs);
  });
}

bool can_multiply_fp8(std::span<const CodedPart> parts, std::span<const PackedColumns> columns) {
  const auto has_whole_steps = [](const PackedColumns& some) {
    return some.count % kFp8StepInputs == 0 && some.packed % kFp8StepInputs == 0;
  };
  const auto shares_scales = [&](const CodedPart& part) {
    return part.fp8() != nullptr && std::ranges::all_of(columns, [&](const PackedColumns& some) {
             return some.count == 0 || part.shares_scale(some.source, kFp8StepInputs);
           });
  };
  return std::ranges::all_of(columns, has_whole_steps) && std::ranges::all_of(parts, shares_scales);
}

WeightFormat format_of(std::span<const CodedPart> parts, std::span<const PackedColumns> columns) {
  WeightFormat format{.codes = codes_of(parts.front()), .scales = scales_of(parts)};
  for (const CodedPart& part : parts) {
    for (const PackedColumns& some : columns) {
      const bool is_shared = has_factors(format.scales) ? part.shares_group(some.source, kStepInputs)
                                                        : part.shares_scale(some.source, kStepInputs);
      if (some.count > 0 && !is_shared) format.scales_per_step = kUnitsPerStep;
    }
  }
  if (format.codes == WeightCodes::kTable4) {
    const CodeMatrix& matrix = *parts.front().codes();
    const std::array<int8_t, 16> integers = tensor::code_integers(matrix.values, matrix.offsets);
    for (size_t i = 0; i < integers.size(); ++i) {
      format.integers[i / 4] |= static_cast<uint32_t>(integers[i] + 128) << 8 * (i % 4);
    }
  }
  return format;
}

void check_coded(const CodedPart& part, int64_t cols) {
  CHECK(part.rows() <= INT32_MAX && part.cols() <= INT32_MAX, "{}: [{}, {}]", part.name(), part.rows(), part.cols());
  CHECK(part.cols() == cols, "{}: [{}, {}] with rows of {}", part.name(), part.rows(), part.cols(), cols);
}

CodedWeight coded_weight(std::vector<CodedPart> parts, bool gate_up, MatrixInstruction by) {
  CHECK(!parts.empty(), "a weight without parts");
  DeviceWeight weight{.in_features = static_cast<int32_t>(parts.front().cols()), .gate_up = gate_up, .by = by};
  for (const CodedPart& part : parts) {
    check_coded(part, parts.front().cols());
    weight.out_features += static_cast<int32_t>(part.rows());
  }
  if (gate_up) {
    CHECK(parts.size() == 2 && parts[0].rows() == parts[1].rows(), "{}: gate and up differ", parts[0].name());
    weight.out_features /= 2;
  }
  std::vector<PackedColumns> columns = all_columns(parts.front());
  weight.format = format_of(parts, columns);
  return {.parts = std::move(parts), .columns = std::move(columns), .weight = weight};
}

std::vector<CodedWeight> coded_stack(std::span<const CodeMatrix> parts, MatrixInstruction by) {
  std::vector<CodedWeight> kinds;
  int32_t features = 0;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    while (end < parts.size() && tensor::share_code_layout(parts[end], parts[begin])) ++end;
    check_coded(CodedPart(parts[begin]), parts.front().cols);
    const std::span run = parts.subspan(begin, end - begin);
    CodedWeight& kind = kinds.emplace_back(coded_weight({run.begin(), run.end()}, false, by));
    kind.weight.first_column = features;
    features += kind.weight.out_features;
  }
  for (CodedWeight& kind : kinds) kind.weight.columns = kind.weight.whole_features = features;
  return kinds;
}

CodedWeight::Source CodedWeight::source_of(int32_t packed_row) const {
  size_t which = 0;
  int64_t row = packed_row;
  if (weight.gate_up) {
    which = static_cast<size_t>(packed_row / 8 % 2);
    row = packed_row / 16 * 8 + packed_row % 8;
  } else {
    while (which < parts.size() && row >= parts[which].rows()) row -= parts[which++].rows();
  }
  if (which >= parts.size() || row >= parts[which].rows()) return {};
  return {&parts[which], row};
}

void CodedWeight::pack_row(const Source& source, int32_t panel_row, std::byte* to) const {
  const WeightFormat& format = weight.format;
  for (const PackedColumns& some : columns) {
    for (int64_t first = 0; first < some.count; first += kUnitInputs) {
      const auto input = static_cast<int32_t>(some.packed + first);
      const int32_t half = input / kUnitInputs % kUnitsPerStep;
      std::byte* const step = to + static_cast<size_t>(input / kStepInputs) * static_cast<size_t>(step_bytes(format));
      put_codes(*source.part, source.row, some.source + first, std::min<int64_t>(kUnitInputs, some.count - first), step,
                panel_row, half);
      std::byte* const scale = step + scale_offset(format, panel_row, half);
      if (has_factors(format.scales))
        put_factors(*source.part->codes(), format, source.row, some.source + first, half, scale);
      if (half > 0 && format.scales_per_step == 1) continue;
      put_scale(*source.part, format.scales, source.row, some.source + first, scale);
    }
  }
}

void CodedWeight::pack_panel(int32_t panel, std::byte* to) const {
  for (int32_t panel_row = 0; panel_row < kPanelRows; ++panel_row) {
    const Source source = source_of(panel * kPanelRows + panel_row);
    if (source.part == nullptr) continue;
    if (weight.format.codes == WeightCodes::kE4M3Both) {
      pack_fp8_row(*source.part, source.row, columns, panel_row, to);
    } else {
      pack_row(source, panel_row, to);
    }
  }
}

}  // namespace millrace::cuda
