#include "weights/block_codes.h"

#include <cstring>

#include "base/parallel_for.h"
#include "weights/element_codes.h"
#include "weights/gguf_blocks.h"
#include "weights/k_blocks.h"

namespace millrace::weights {
namespace {

using tensor::CodeHalfScales;
using tensor::CodeStorage;
using tensor::CodeValues;
using tensor::DType;
using tensor::kCodeHalf;
using tensor::kCodeUnit;
using tensor::TermRange;

// ggml's numbers of the types in codes.
constexpr uint32_t kQ4_0 = 2;
constexpr uint32_t kQ4_1 = 3;
constexpr uint32_t kQ5_0 = 6;
constexpr uint32_t kQ5_1 = 7;
constexpr uint32_t kQ8_0 = 8;
constexpr uint32_t kQ2_K = 10;
constexpr uint32_t kQ3_K = 11;
constexpr uint32_t kQ4_K = 12;
constexpr uint32_t kQ5_K = 13;
constexpr uint32_t kQ6_K = 14;
constexpr uint32_t kIq4_NL = 20;
constexpr uint32_t kIq4_XS = 23;
constexpr uint32_t kMxfp4 = 39;
constexpr int64_t kFactorBlock = 256;
constexpr int kBlockHalves = kFactorBlock / kCodeHalf;

/// Converts rows of blocks of a GGUF file.
class BlockConverter {
 public:
  explicit BlockConverter(const StoredWeight& weight)
      : weight_(weight),
        type_(weight.blocks.ggml_type),
        block_bytes_(static_cast<int64_t>(find_ggml_type(type_)->block_bytes)),
        block_weights_(find_ggml_type(type_)->block_weights) {}

  [[nodiscard]] CodeStorage describe(TermRange rows) const {
    const CodeLayout kind = *block_code_layout(type_);
    CodeStorage storage{.name = weight_.name,
                        .rows = rows.size(),
                        .cols = weight_.cols,
                        .bits = kind.bits,
                        .integer_bits = kind.integer_bits,
                        .values = kind.values,
                        .offsets = kind.has_minimums ? tensor::CodeOffsets::kMinimums : tensor::CodeOffsets::kNone,
                        .group = block_weights_,
                        .scale_dtype = block_code_scales(type_),
                        .half_kind = kind.half_scales};
    if (type_ == kGgmlNvfp4) return describe_nvfp4(storage);
    const auto blocks = static_cast<size_t>(rows.size() * weight_.cols / block_weights_);
    const auto units = static_cast<size_t>(rows.size() * weight_.cols / kCodeUnit);
    storage.codes.resize(units * kCodeUnit * static_cast<size_t>(kind.bits) / 8);
    storage.scales.resize(blocks * 2);
    if (kind.has_minimums) storage.minimums.resize(blocks * 2);
    const bool has_halves = kind.half_scales == CodeHalfScales::kInt8;
    if (has_halves) storage.half_scales.resize(2 * units);
    if (kind.has_half_minimums) storage.half_minimums.resize(2 * units);
    if (block_weights_ == kFactorBlock && !has_halves) storage.unit_scales.resize(units);
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
    storage.codes.resize(static_cast<size_t>(storage.rows * weight_.cols / 2));
    storage.scales.resize(static_cast<size_t>(storage.rows) * sizeof(scale));
    for (int64_t row = 0; row < storage.rows; ++row)
      std::memcpy(storage.scales.data() + static_cast<size_t>(row) * sizeof(scale), &scale, sizeof(scale));
    storage.half_scales.resize(static_cast<size_t>(storage.rows * weight_.cols / kCodeHalf));
    return std::move(storage);
  }

  void convert_block(const uint8_t* block, int64_t index, CodeStorage& storage) const {
    uint8_t* const codes = storage.codes.data() + index * block_weights_ * storage.bits / 8;
    if (type_ == kGgmlNvfp4) return convert_nvfp4(block, index, codes, storage);
    std::byte* const scale = storage.scales.data() + index * 2;
    switch (type_) {
      case kQ4_0:
      case kIq4_NL: std::memcpy(scale, block, 2); return pack_halves(block + 2, codes);
      case kQ4_1:
        std::memcpy(scale, block, 2);
        std::memcpy(storage.minimums.data() + index * 2, block + 2, 2);
        return pack_halves(block + 4, codes);
      case kMxfp4: {
        const tensor::BFloat16 value =
            tensor::BFloat16::from_float(detail::power_of_two(static_cast<int>(block[0]) - 128));
        std::memcpy(scale, &value.bits, 2);
        return pack_halves(block + 1, codes);
      }
      case kQ8_0:
        std::memcpy(scale, block, 2);
        for (int i = 0; i < kCodeUnit; ++i) codes[i] = static_cast<uint8_t>(block[2 + i] ^ kCodeByteOffset);
        return;
      case kQ5_0: std::memcpy(scale, block, 2); return widen_fifths(block + 2, kCodeByteOffset - 16, codes);
      case kQ5_1:
        std::memcpy(scale, block, 2);
        std::memcpy(storage.minimums.data() + index * 2, block + 2, 2);
        return widen_fifths(block + 4, kCodeByteOffset, codes);
      case kQ2_K: return convert_q2_k(block, index, codes, storage);
      case kQ3_K: return convert_q3_k(block, index, codes, storage);
      case kQ6_K: return convert_q6_k(block, index, codes, storage);
      case kQ4_K:
      case kQ5_K: return convert_q4_k(block, index, codes, storage);
      default: return convert_iq4_xs(block, index, codes, storage);
    }
  }

  /// Writes the minimum of an f16 that is subtracted.
  static void put_subtracted(const uint8_t* from, std::byte* to) {
    uint16_t minimum = 0;
    std::memcpy(&minimum, from, sizeof(minimum));
    minimum ^= 0x8000;
    std::memcpy(to, &minimum, sizeof(minimum));
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

  static void convert_q2_k(const uint8_t* block, int64_t index, uint8_t* codes, CodeStorage& storage) {
    std::memcpy(storage.scales.data() + index * 2, block + Q2KBlock::kScale, 2);
    put_subtracted(block + Q2KBlock::kMinimum, storage.minimums.data() + index * 2);
    for (int half = 0; half < kBlockHalves; ++half) {
      const auto at = static_cast<size_t>(index * kBlockHalves + half);
      storage.half_scales[at] = block[half] & 15;
      storage.half_minimums[at] = static_cast<int8_t>(block[half] >> 4);
    }
    for (int i = 0; i < kFactorBlock; ++i)
      codes[i] = static_cast<uint8_t>(two_bits(block + Q2KBlock::kCodes, i) + kCodeByteOffset);
  }

  static void convert_q3_k(const uint8_t* block, int64_t index, uint8_t* codes, CodeStorage& storage) {
    std::memcpy(storage.scales.data() + index * 2, block + Q3KBlock::kScale, 2);
    for (int half = 0; half < kBlockHalves; ++half)
      storage.half_scales[static_cast<size_t>(index * kBlockHalves + half)] =
          static_cast<uint8_t>(q3_k_factor(block, half));
    for (int i = 0; i < kFactorBlock; ++i) codes[i] = static_cast<uint8_t>(q3_k_integer(block, i) + kCodeByteOffset);
  }

  static void convert_q6_k(const uint8_t* block, int64_t index, uint8_t* codes, CodeStorage& storage) {
    std::memcpy(storage.scales.data() + index * 2, block + 208, 2);
    std::memcpy(storage.half_scales.data() + index * kBlockHalves, block + 192, kBlockHalves);
    for (int i = 0; i < kFactorBlock; ++i) {
      const int half = i / 128;
      const int within = i % 128;
      const int low = block[half * 64 + within % 64] >> (within / 64 * 4) & 15;
      const int high = block[128 + half * 32 + within % 32] >> (within / 32 * 2) & 3;
      codes[i] = static_cast<uint8_t>((low | high << 4) - 32 + kCodeByteOffset);
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
    put_subtracted(block + 2, storage.minimums.data() + index * 2);
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
        codes[unit * kCodeUnit + i] = static_cast<uint8_t>(code + kCodeByteOffset);
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

}  // namespace

std::optional<CodeLayout> block_code_layout(uint32_t ggml_type) {
  switch (ggml_type) {
    case kQ4_0: return CodeLayout{};
    case kQ4_1:
    case kQ4_K: return CodeLayout{.has_minimums = true};
    case kIq4_NL:
    case kIq4_XS: return CodeLayout{.values = CodeValues::kIq4};
    case kMxfp4: return CodeLayout{.values = CodeValues::kTwiceE2M1};
    case kGgmlNvfp4: return CodeLayout{.values = CodeValues::kTwiceE2M1, .half_scales = CodeHalfScales::kE4M3};
    case kQ2_K:
      return CodeLayout{.bits = 8,
                        .integer_bits = 2,
                        .has_minimums = true,
                        .half_scales = CodeHalfScales::kInt8,
                        .has_half_minimums = true};
    case kQ3_K: return CodeLayout{.bits = 8, .integer_bits = 3, .half_scales = CodeHalfScales::kInt8};
    case kQ5_0: return CodeLayout{.bits = 8, .integer_bits = 5};
    case kQ8_0: return CodeLayout{.bits = 8};
    case kQ5_1:
    case kQ5_K: return CodeLayout{.bits = 8, .integer_bits = 5, .has_minimums = true};
    case kQ6_K: return CodeLayout{.bits = 8, .integer_bits = 6, .half_scales = CodeHalfScales::kInt8};
    default: return std::nullopt;
  }
}

DType block_code_scales(uint32_t ggml_type) {
  if (ggml_type == kGgmlNvfp4) return DType::kF32;
  return ggml_type == kMxfp4 ? DType::kBF16 : DType::kF16;
}

CodeStorage block_codes(const StoredWeight& weight, TermRange rows, int32_t threads) {
  const BlockConverter converter(weight);
  CodeStorage storage = converter.describe(rows);
  parallel_for({.count = rows.size(), .block = kDecodeRows, .threads = threads, .thread_name = "decode"},
               [&](int64_t begin, int64_t end) { converter.convert(rows.begin, begin, end, storage); });
  return storage;
}

}  // namespace millrace::weights
