#include "weights/weight_codes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/parallel_for.h"
#include "weights/element_codes.h"
#include "weights/gguf_blocks.h"

namespace millrace::weights {
namespace {

using tensor::BFloat16;
using tensor::CodeHalfScales;
using tensor::CodeOffsets;
using tensor::CodeStorage;
using tensor::CodeValues;
using tensor::DType;
using tensor::kCodeHalf;
using tensor::kCodeUnit;
using tensor::TermRange;

// ggml's numbers of the types in codes of 4 bits or more.
constexpr uint32_t kQ4_0 = 2;
constexpr uint32_t kQ4_1 = 3;
constexpr uint32_t kQ5_0 = 6;
constexpr uint32_t kQ5_1 = 7;
constexpr uint32_t kQ8_0 = 8;
constexpr uint32_t kQ4_K = 12;
constexpr uint32_t kQ5_K = 13;
constexpr uint32_t kQ6_K = 14;
constexpr uint32_t kIq4_NL = 20;
constexpr uint32_t kIq4_XS = 23;
constexpr uint32_t kMxfp4 = 39;
constexpr uint32_t kNvfp4 = 40;
constexpr int64_t kFactorBlock = 256;
constexpr int kByteOffset = 128;  // of codes of 8 bits

std::optional<CodeLayout> kind_of_blocks(uint32_t type) {
  switch (type) {
    case kQ4_0: return CodeLayout{};
    case kQ4_1:
    case kQ4_K: return CodeLayout{.has_minimums = true};
    case kIq4_NL:
    case kIq4_XS: return CodeLayout{.values = CodeValues::kIq4};
    case kMxfp4: return CodeLayout{.values = CodeValues::kTwiceE2M1};
    case kNvfp4: return CodeLayout{.values = CodeValues::kTwiceE2M1, .half_scales = CodeHalfScales::kE4M3};
    case kQ5_0: return CodeLayout{.bits = 8, .integer_bits = 5};
    case kQ8_0: return CodeLayout{.bits = 8};
    case kQ5_1:
    case kQ5_K: return CodeLayout{.bits = 8, .integer_bits = 5, .has_minimums = true};
    case kQ6_K: return CodeLayout{.bits = 8, .integer_bits = 6, .half_scales = CodeHalfScales::kInt8};
    default: return std::nullopt;
  }
}

/// Returns whether a f32 is a bf16.
bool is_bf16(float value) {
  return BFloat16::from_float(value).to_float() == value;
}

/// Returns whether neighbouring columns make the groups, as whole units. GPTQ stores the groups of columns either way.
bool has_plain_groups(const StoredWeight& weight) {
  if (weight.group_rows != 1 || weight.group_cols % kCodeUnit != 0) return false;
  if (weight.group_index.empty()) return true;
  if (weight.group_cols == 0) return false;
  for (int64_t k = 0; k < weight.cols; ++k) {
    int32_t group = 0;
    std::memcpy(&group, weight.group_index.data() + k * 4, sizeof(group));
    if (group != k / weight.group_cols) return false;
  }
  return true;
}

/// Returns whether a weight has the groups of NVFP4: E4M3 scales of 16 columns, and a scale of all.
bool is_nvfp4(const StoredWeight& weight) {
  return weight.codes.kind == CodeKind::kE2M1 && weight.scales.kind == ScaleKind::kE4M3 && weight.group_rows == 1 &&
         weight.group_cols == kCodeHalf && weight.group_index.empty();
}

/// Returns whether the zero point of all codes is the one of codes in memory, or becomes it when they are shifted.
bool has_shared_zero(const StoredWeight& weight) {
  if (weight.zeros.order != ZeroArray::Order::kConstant) return false;
  const int bits = weight.codes.bits;
  return bits > 4 ? (1 << bits) - 1 - weight.zeros.constant < kByteOffset && weight.zeros.constant <= kByteOffset
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
  CodeConverter(const StoredWeight& weight, bool by_type)
      : weight_(weight),
        by_type_(by_type),
        is_nvfp4_(is_nvfp4(weight)),
        groups_(is_nvfp4_ ? 1 : weight.group_count()),
        bits_(weight.codes.bits > 4 ? 8 : 4),
        shift_(bits_ == 8 ? kByteOffset - weight.zeros.constant : 0),
        has_zeros_(weight.codes.kind == CodeKind::kUnsigned && !has_shared_zero(weight)) {}

  [[nodiscard]] CodeStorage describe(TermRange rows) const {
    const bool is_e2m1 = weight_.codes.kind == CodeKind::kE2M1;
    const int64_t whole = (weight_.cols + kCodeUnit - 1) / kCodeUnit * kCodeUnit;
    CodeStorage storage{.name = weight_.name,
                        .rows = rows.size(),
                        .cols = weight_.cols,
                        .bits = bits_,
                        .integer_bits = integer_bits_of(weight_),
                        .values = is_e2m1 ? CodeValues::kTwiceE2M1 : CodeValues::kInteger,
                        .offsets = has_zeros_ ? CodeOffsets::kZeroPoints : CodeOffsets::kNone,
                        .group = weight_.group_cols > 0 && !is_nvfp4_ ? weight_.group_cols : whole,
                        .scale_dtype = scale_dtype(rows),
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

  /// Returns the narrowest type of the scales of some rows, or of all that are stored in their type.
  [[nodiscard]] DType scale_dtype(TermRange rows) const {
    if (weight_.scales.kind == ScaleKind::kF16 && weight_.codes.kind != CodeKind::kE2M1) return DType::kF16;
    if (weight_.scales.kind == ScaleKind::kBF16) return DType::kBF16;
    if (by_type_) return weight_.scales.kind == ScaleKind::kE8M0 ? DType::kBF16 : DType::kF32;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (int64_t group = 0; group < groups_; ++group) {
        if (!is_bf16(scale(row, group))) return DType::kF32;
      }
    }
    return DType::kBF16;
  }

  void write_group(int64_t first, int64_t row, int64_t group, CodeStorage& storage) const {
    const int64_t at = row * groups_ + group;
    if (has_zeros_)
      storage.zero_points[static_cast<size_t>(at)] = static_cast<uint8_t>(group_zero(weight_, first + row, group));
    std::byte* const to = storage.scales.data() + static_cast<size_t>(at) * tensor::size_of(storage.scale_dtype);
    if (storage.scale_dtype == DType::kF16) {
      const int64_t from = (first + row) * weight_.scales.row_stride + group * weight_.scales.group_stride;
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
  const bool by_type_;
  const bool is_nvfp4_;
  const int64_t groups_;
  const int bits_;   // of a code in memory
  const int shift_;  // of codes of 8 bits without zero points
  const bool has_zeros_;
};

/// Converts rows of blocks of a GGUF file.
class BlockConverter {
 public:
  explicit BlockConverter(const StoredWeight& weight)
      : weight_(weight),
        type_(weight.blocks.ggml_type),
        block_bytes_(static_cast<int64_t>(find_ggml_type(type_)->block_bytes)),
        block_weights_(find_ggml_type(type_)->block_weights) {}

  [[nodiscard]] CodeStorage describe(TermRange rows) const {
    const CodeLayout kind = *kind_of_blocks(type_);
    CodeStorage storage{.name = weight_.name,
                        .rows = rows.size(),
                        .cols = weight_.cols,
                        .bits = kind.bits,
                        .integer_bits = kind.integer_bits,
                        .values = kind.values,
                        .offsets = kind.has_minimums ? CodeOffsets::kMinimums : CodeOffsets::kNone,
                        .group = block_weights_,
                        .scale_dtype = type_ == kMxfp4 ? DType::kBF16 : DType::kF16,
                        .half_kind = kind.half_scales};
    if (type_ == kNvfp4) return describe_nvfp4(storage);
    const auto blocks = static_cast<size_t>(rows.size() * weight_.cols / block_weights_);
    const auto units = static_cast<size_t>(rows.size() * weight_.cols / kCodeUnit);
    storage.codes.resize(units * kCodeUnit * static_cast<size_t>(kind.bits) / 8);
    storage.scales.resize(blocks * 2);
    if (kind.has_minimums) storage.minimums.resize(blocks * 2);
    if (type_ == kQ6_K) storage.half_scales.resize(2 * units);
    if (block_weights_ == kFactorBlock && type_ != kQ6_K) storage.unit_scales.resize(units);
    if (type_ == kQ4_K || type_ == kQ5_K) storage.unit_minimums.resize(units);
    return storage;
  }

  void convert(int64_t first, int64_t begin, int64_t end, CodeStorage& storage) const {
    const int64_t per_row = weight_.cols / block_weights_;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(weight_.blocks.bytes.data());
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* const blocks = bytes + weight_.blocks.row_order.stored(first + row) * per_row * block_bytes_;
      for (int64_t block = 0; block < per_row; ++block)
        convert_block(blocks + block * block_bytes_, row * per_row + block, storage);
    }
  }

 private:
  /// Describes NVFP4: one scale of a row, which is the factor of the tensor.
  [[nodiscard]] CodeStorage describe_nvfp4(CodeStorage& storage) const {
    const float scale = 0.5f * weight_.blocks.factor;
    storage.group = weight_.cols;
    storage.scale_dtype = DType::kF32;
    storage.codes.resize(static_cast<size_t>(storage.rows * weight_.cols / 2));
    storage.scales.resize(static_cast<size_t>(storage.rows) * sizeof(scale));
    for (int64_t row = 0; row < storage.rows; ++row)
      std::memcpy(storage.scales.data() + static_cast<size_t>(row) * sizeof(scale), &scale, sizeof(scale));
    storage.half_scales.resize(static_cast<size_t>(storage.rows * weight_.cols / kCodeHalf));
    return std::move(storage);
  }

  void convert_block(const uint8_t* block, int64_t index, CodeStorage& storage) const {
    uint8_t* const codes = storage.codes.data() + index * block_weights_ * storage.bits / 8;
    if (type_ == kNvfp4) return convert_nvfp4(block, index, codes, storage);
    std::byte* const scale = storage.scales.data() + index * 2;
    switch (type_) {
      case kQ4_0:
      case kIq4_NL: std::memcpy(scale, block, 2); return pack_halves(block + 2, codes);
      case kQ4_1:
        std::memcpy(scale, block, 2);
        std::memcpy(storage.minimums.data() + index * 2, block + 2, 2);
        return pack_halves(block + 4, codes);
      case kMxfp4: {
        const BFloat16 value = BFloat16::from_float(detail::power_of_two(static_cast<int>(block[0]) - 128));
        std::memcpy(scale, &value.bits, 2);
        return pack_halves(block + 1, codes);
      }
      case kQ8_0:
        std::memcpy(scale, block, 2);
        for (int i = 0; i < kCodeUnit; ++i) codes[i] = static_cast<uint8_t>(block[2 + i] ^ kByteOffset);
        return;
      case kQ5_0: std::memcpy(scale, block, 2); return widen_fifths(block + 2, kByteOffset - 16, codes);
      case kQ5_1:
        std::memcpy(scale, block, 2);
        std::memcpy(storage.minimums.data() + index * 2, block + 2, 2);
        return widen_fifths(block + 4, kByteOffset, codes);
      case kQ6_K: return convert_q6_k(block, index, codes, storage);
      case kQ4_K:
      case kQ5_K: return convert_q4_k(block, index, codes, storage);
      default: return convert_iq4_xs(block, index, codes, storage);
    }
  }

  /// Packs 32 codes, whose low halves come first.
  static void pack_halves(const uint8_t* nibbles, uint8_t* out) {
    for (int i = 0; i < 8; ++i) {
      const int low = nibbles[2 * i];
      const int high = nibbles[2 * i + 1];
      out[i] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
      out[8 + i] = static_cast<uint8_t>((low >> 4) | (high & 0xF0));
    }
  }

  /// Converts 32 codes of 5 bits: the fifth ones, then halves of 4 bits.
  static void widen_fifths(const uint8_t* from, int offset, uint8_t* out) {
    uint32_t fifths = 0;
    std::memcpy(&fifths, from, sizeof(fifths));
    for (unsigned i = 0; i < 16; ++i) {
      const unsigned low = (from[4 + i] & 15u) | (fifths >> i & 1u) << 4;
      const unsigned high = (from[4 + i] >> 4u) | (fifths >> (i + 16) & 1u) << 4;
      out[i] = static_cast<uint8_t>(low + static_cast<unsigned>(offset));
      out[16 + i] = static_cast<uint8_t>(high + static_cast<unsigned>(offset));
    }
  }

  static void convert_q6_k(const uint8_t* block, int64_t index, uint8_t* codes, CodeStorage& storage) {
    std::memcpy(storage.scales.data() + index * 2, block + 208, 2);
    std::memcpy(storage.half_scales.data() + index * kFactorBlock / kCodeHalf, block + 192, kFactorBlock / kCodeHalf);
    for (int i = 0; i < kFactorBlock; ++i) {
      const int half = i / 128;
      const int within = i % 128;
      const int low = block[half * 64 + within % 64] >> (within / 64 * 4) & 15;
      const int high = block[128 + half * 32 + within % 32] >> (within / 32 * 2) & 3;
      codes[i] = static_cast<uint8_t>((low | high << 4) - 32 + kByteOffset);
    }
  }

  static void convert_nvfp4(const uint8_t* block, int64_t index, uint8_t* codes, CodeStorage& storage) {
    for (int half = 0; half < 4; ++half) {
      const auto scale = static_cast<uint8_t>(block[half] & 0x7F);
      storage.half_scales[static_cast<size_t>(index * 4 + half)] = scale == 0x7F ? uint8_t{0} : scale;
      const uint8_t* const nibbles = block + 4 + half * 8;
      for (int i = 0; i < 4; ++i) {
        codes[half * 8 + i] = static_cast<uint8_t>((nibbles[2 * i] & 15) | (nibbles[2 * i + 1] & 15) << 4);
        codes[half * 8 + 4 + i] = static_cast<uint8_t>((nibbles[2 * i] >> 4) | (nibbles[2 * i + 1] & 0xF0));
      }
    }
  }

  /// Converts Q4_K, and Q5_K, which has fifth bits of all blocks before the other four.
  static void convert_q4_k(const uint8_t* block, int64_t index, uint8_t* codes, CodeStorage& storage) {
    std::memcpy(storage.scales.data() + index * 2, block, 2);
    uint16_t minimum = 0;
    std::memcpy(&minimum, block + 2, 2);
    minimum ^= 0x8000;  // it is subtracted
    std::memcpy(storage.minimums.data() + index * 2, &minimum, 2);
    const uint8_t* const packed = block + 4;
    for (int unit = 0; unit < 8; ++unit) {
      const auto at = static_cast<size_t>(index * 8 + unit);
      const int scale = unit < 4 ? packed[unit] & 63 : (packed[unit + 4] & 15) | (packed[unit - 4] >> 6) << 4;
      const int least = unit < 4 ? packed[unit + 4] & 63 : (packed[unit + 4] >> 4) | (packed[unit] >> 6) << 4;
      storage.unit_scales[at] = static_cast<int8_t>(scale);
      storage.unit_minimums[at] = static_cast<int8_t>(least);
      const uint8_t* const nibbles = block + (storage.bits == 8 ? 48 : 16) + unit / 2 * kCodeUnit;
      const int shift = unit % 2 * 4;
      for (int i = 0; storage.bits == 8 && i < kCodeUnit; ++i) {
        const int code = (nibbles[i] >> shift & 15) | (block[16 + i] >> unit & 1) << 4;
        codes[unit * kCodeUnit + i] = static_cast<uint8_t>(code + kByteOffset);
      }
      for (int i = 0; storage.bits == 4 && i < 16; ++i) {
        codes[unit * 16 + i] =
            static_cast<uint8_t>((nibbles[2 * i] >> shift & 15) | (nibbles[2 * i + 1] >> shift & 15) << 4);
      }
    }
  }

  static void convert_iq4_xs(const uint8_t* block, int64_t index, uint8_t* codes, CodeStorage& storage) {
    std::memcpy(storage.scales.data() + index * 2, block, 2);
    const int high = block[2] | block[3] << 8;
    for (int unit = 0; unit < 8; ++unit) {
      const int low = block[4 + unit / 2] >> (unit % 2 * 4) & 15;
      storage.unit_scales[static_cast<size_t>(index * 8 + unit)] =
          static_cast<int8_t>((low | (high >> (2 * unit) & 3) << 4) - 32);
      pack_halves(block + 8 + unit * 16, codes + unit * 16);
    }
  }

  const StoredWeight& weight_;
  const uint32_t type_;
  const int64_t block_bytes_;
  const int64_t block_weights_;
};

template <class Converter>
CodeStorage convert(const Converter& converter, TermRange rows, int32_t threads) {
  CodeStorage storage = converter.describe(rows);
  parallel_for({.count = rows.size(), .block = kDecodeRows, .threads = threads, .thread_name = "decode"},
               [&](int64_t begin, int64_t end) { converter.convert(rows.begin, begin, end, storage); });
  return storage;
}

}  // namespace

std::optional<CodeLayout> code_layout(const StoredWeight& weight) {
  if (weight.has_blocks()) {
    const bool has_factor = weight.blocks.factor != 1.0f && weight.blocks.ggml_type != kNvfp4;
    if (has_factor || !weight.blocks.column_order.is_in_order()) return std::nullopt;
    return kind_of_blocks(weight.blocks.ggml_type);
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

CodeStorage to_codes(const StoredWeight& weight, TermRange rows, int32_t threads, bool by_type) {
  CHECK(code_layout(weight), "{} has no codes that tensor/code_matrix.h describes", weight.name);
  if (weight.has_blocks()) return convert(BlockConverter(weight), rows, threads);
  return convert(CodeConverter(weight, by_type), rows, threads);
}

}  // namespace millrace::weights
