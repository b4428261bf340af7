#include "weights/weight_codes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/parallel_for.h"
#include "weights/block_codes.h"

namespace millrace::weights {
namespace {

using tensor::BFloat16;
using tensor::CodeHalfScales;
using tensor::CodeStorage;
using tensor::CodeValues;
using tensor::DType;
using tensor::kCodeUnit;
using tensor::TermRange;

/// Returns whether a f32 is a bf16.
bool is_bf16(float value) {
  return BFloat16::from_float(value).to_float() == value;
}

/// Returns whether neighbouring columns of rows make the groups, as whole units. Rows that share a scale get one each.
bool has_plain_groups(const StoredWeight& weight) {
  const bool has_rows = weight.group_rows == 1 || weight.zeros.order == ZeroArray::Order::kConstant;
  return has_rows && weight.group_cols % kCodeUnit == 0 && weight.has_groups_in_order();
}

/// Returns whether a weight has the groups of NVFP4: E4M3 scales of 16 columns, and a scale of all.
bool is_nvfp4(const StoredWeight& weight) {
  return weight.codes.kind == CodeKind::kE2M1 && weight.scales.kind == ScaleKind::kE4M3 && weight.group_rows == 1 &&
         weight.group_cols == tensor::kCodeHalf && weight.group_index.empty();
}

/// Returns whether the zero point of all codes is the one of codes in memory, or becomes it when they are shifted.
bool has_shared_zero(const StoredWeight& weight) {
  if (weight.zeros.order != ZeroArray::Order::kConstant) return false;
  const int bits = weight.codes.bits;
  return bits > 4
             ? (1 << bits) - 1 - weight.zeros.constant < kCodeByteOffset && weight.zeros.constant <= kCodeByteOffset
             : weight.zeros.constant == 8;
}

/// Returns tensor::CodeMatrix::integer_bits of codes without a table.
int integer_bits_of(const StoredWeight& weight) {
  const int bits = weight.codes.bits;
  if (weight.codes.kind != CodeKind::kUnsigned || bits <= 4) return 8;
  if (!has_shared_zero(weight)) return bits;
  const int zero = weight.zeros.constant;
  const int most = std::max(zero - 1, (1 << bits) - 1 - zero);
  return std::max(5, static_cast<int>(std::bit_width(static_cast<unsigned>(most))) + 1);
}

/// Converts rows of codes with scales and zero points.
class CodeConverter {
 public:
  explicit CodeConverter(const StoredWeight& weight)
      : weight_(weight),
        is_nvfp4_(is_nvfp4(weight)),
        groups_(is_nvfp4_ ? 1 : weight.group_count()),
        bits_(weight.codes.bits > 4 ? 8 : 4),
        shift_(bits_ == 8 ? kCodeByteOffset - weight.zeros.constant : 0),
        has_zeros_(has_zero_points(weight)) {}

  /// Returns the narrowest type of the scales of some rows, or of all that are stored in their type.
  [[nodiscard]] DType narrowest_scales(TermRange rows) const {
    if (weight_.scales.kind == ScaleKind::kF16 && weight_.codes.kind != CodeKind::kE2M1) return DType::kF16;
    if (weight_.scales.kind == ScaleKind::kBF16 || weight_.scales.kind == ScaleKind::kE8M0) return DType::kBF16;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (int64_t group = 0; group < groups_; ++group) {
        if (!is_bf16(scale(row, group))) return DType::kF32;
      }
    }
    return DType::kBF16;
  }

  [[nodiscard]] CodeStorage describe(TermRange rows, DType scale_dtype) const {
    const bool is_e2m1 = weight_.codes.kind == CodeKind::kE2M1;
    const int64_t whole = (weight_.cols + kCodeUnit - 1) / kCodeUnit * kCodeUnit;
    CodeStorage storage{.name = weight_.name,
                        .rows = rows.size(),
                        .cols = weight_.cols,
                        .bits = bits_,
                        .integer_bits = integer_bits_of(weight_),
                        .values = is_e2m1 ? CodeValues::kTwiceE2M1 : CodeValues::kInteger,
                        .offsets = has_zeros_ ? tensor::CodeOffsets::kZeroPoints : tensor::CodeOffsets::kNone,
                        .group = weight_.group_cols > 0 && !is_nvfp4_ ? weight_.group_cols : whole,
                        .scale_dtype = scale_dtype,
                        .half_kind = is_nvfp4_ ? CodeHalfScales::kE4M3 : CodeHalfScales::kNone};
    const auto count = static_cast<size_t>(rows.size() * groups_);
    storage.codes.resize(static_cast<size_t>(rows.size() * storage.view().row_bytes()));
    storage.scales.resize(count * tensor::size_of(storage.scale_dtype));
    if (has_zeros_) storage.zero_points.resize(count);
    if (is_nvfp4_) storage.half_scales.resize(static_cast<size_t>(rows.size() * storage.view().halves()));
    return storage;
  }

  /// Converts rows [begin, end) of `storage`, whose first is row `first` of the weight.
  void convert(int64_t first, int64_t begin, int64_t end, CodeStorage& storage) const {
    std::vector<uint8_t> codes(static_cast<size_t>(kDecodeRows * weight_.cols));
    const int64_t row_bytes = storage.view().row_bytes();
    for (int64_t block = begin; block < end; block += kDecodeRows) {
      const int64_t count = std::min(kDecodeRows, end - block);
      read_codes(weight_, first + block, count, codes.data());
      for (int64_t i = 0; i < count; ++i) {
        pack(codes.data() + i * weight_.cols, storage.codes.data() + (block + i) * row_bytes);
        for (int64_t group = 0; group < groups_; ++group) write_group(first, block + i, group, storage);
        if (is_nvfp4_) write_half_scales(first, block + i, storage);
      }
    }
  }

 private:
  void pack(const uint8_t* codes, uint8_t* out) const {
    int64_t k = 0;
    if (bits_ == 8) {
      const int shift = has_zeros_ ? 0 : shift_;
      for (; k < weight_.cols; ++k) out[k] = static_cast<uint8_t>(codes[k] + shift);
      return;
    }
    for (; k + 1 < weight_.cols; k += 2) out[k / 2] = static_cast<uint8_t>(codes[k] | codes[k + 1] << 4);
    if (k < weight_.cols) out[k / 2] = codes[k];
  }

  void write_half_scales(int64_t first, int64_t row, CodeStorage& storage) const {
    const int64_t halves = storage.view().halves();
    for (int64_t half = 0; half < halves; ++half) {
      const int64_t from = (first + row) * weight_.scales.row_stride + half * weight_.scales.group_stride;
      storage.half_scales[static_cast<size_t>(row * halves + half)] =
          static_cast<uint8_t>(weight_.scales.bytes[static_cast<size_t>(from)]);
    }
  }

  [[nodiscard]] float scale(int64_t row, int64_t group) const {
    if (is_nvfp4_) return 0.5f * weight_.scales.factor / weight_.scales.divisor;
    const float stored = group_scale(weight_, row, group);
    return weight_.codes.kind == CodeKind::kE2M1 ? 0.5f * stored : stored;
  }

  void write_group(int64_t first, int64_t row, int64_t group, CodeStorage& storage) const {
    const int64_t at = row * groups_ + group;
    if (has_zeros_)
      storage.zero_points[static_cast<size_t>(at)] = static_cast<uint8_t>(group_zero(weight_, first + row, group));
    std::byte* const to = storage.scales.data() + static_cast<size_t>(at) * tensor::size_of(storage.scale_dtype);
    if (storage.scale_dtype == DType::kF16) {  // as stored
      const int64_t from =
          (first + row) / weight_.group_rows * weight_.scales.row_stride + group * weight_.scales.group_stride;
      std::memcpy(to, weight_.scales.bytes.data() + from * 2, 2);
      return;
    }
    const float value = scale(first + row, group);
    if (storage.scale_dtype == DType::kF32) {
      std::memcpy(to, &value, sizeof(value));
    } else {
      const BFloat16 narrow = BFloat16::from_float(value);
      std::memcpy(to, &narrow.bits, sizeof(narrow.bits));
    }
  }

  const StoredWeight& weight_;
  const bool is_nvfp4_;
  const int64_t groups_;
  const int bits_;   // of a code in memory
  const int shift_;  // of codes of 8 bits without zero points
  const bool has_zeros_;
};

}  // namespace

std::optional<CodeLayout> code_layout(const StoredWeight& weight) {
  if (weight.has_blocks()) {
    const bool has_factor = weight.blocks.factor != 1.0f && weight.blocks.ggml_type != kGgmlNvfp4;
    if (has_factor || !weight.blocks.column_order.is_in_order()) return std::nullopt;
    return block_code_layout(weight.blocks.ggml_type);
  }
  if (is_nvfp4(weight)) return CodeLayout{.values = CodeValues::kTwiceE2M1, .half_scales = CodeHalfScales::kE4M3};
  const ScaleArray& scales = weight.scales;
  const bool has_scales = scales.kind != ScaleKind::kNone && scales.kind != ScaleKind::kE4M3 && scales.factor == 1.0f &&
                          scales.divisor == 1.0f;
  if (!has_plain_groups(weight) || !has_scales) return std::nullopt;
  if (weight.codes.kind == CodeKind::kE2M1) return CodeLayout{.values = CodeValues::kTwiceE2M1};
  if (weight.codes.kind == CodeKind::kUnsigned)
    return CodeLayout{.bits = weight.codes.bits > 4 ? 8 : 4, .integer_bits = integer_bits_of(weight)};
  return std::nullopt;
}

bool has_zero_points(const StoredWeight& weight) {
  return weight.codes.kind == CodeKind::kUnsigned && !has_shared_zero(weight);
}

DType narrowest_code_scales(const StoredWeight& weight, TermRange rows) {
  CHECK(code_layout(weight), "{} has no codes that tensor/code_matrix.h describes", weight.name);
  return weight.has_blocks() ? block_code_scales(weight.blocks.ggml_type)
                             : CodeConverter(weight).narrowest_scales(rows);
}

CodeStorage to_codes(const StoredWeight& weight, TermRange rows, int32_t threads, std::optional<DType> scale_dtype) {
  CHECK(code_layout(weight), "{} has no codes that tensor/code_matrix.h describes", weight.name);
  if (weight.has_blocks()) return block_codes(weight, rows, threads);
  const CodeConverter converter(weight);
  CodeStorage storage = converter.describe(rows, scale_dtype ? *scale_dtype : converter.narrowest_scales(rows));
  parallel_for({.count = rows.size(), .block = kDecodeRows, .threads = threads, .thread_name = "decode"},
               [&](int64_t begin, int64_t end) { converter.convert(rows.begin, begin, end, storage); });
  return storage;
}

}  // namespace millrace::weights
