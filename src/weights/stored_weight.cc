#include "weights/stored_weight.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "weights/element_codes.h"
#include "weights/gguf_blocks.h"

namespace millrace::weights {
namespace {

constexpr int kWordBits = 32;
/// The nibble of an AWQ word in which each of its 8 rows lies.
constexpr std::array<int, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

uint32_t word_at(std::span<const std::byte> bytes, int64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + index * 4, sizeof(word));
  return word;
}

template <class Half>
float half_at(std::span<const std::byte> bytes, int64_t index) {
  Half value;
  std::memcpy(&value, bytes.data() + index * 2, sizeof(value));
  return value.to_float();
}

float float_at(std::span<const std::byte> bytes, tensor::DType dtype, int64_t index) {
  switch (dtype) {
    case tensor::DType::kF32: {
      float value = 0;
      std::memcpy(&value, bytes.data() + index * 4, sizeof(value));
      return value;
    }
    case tensor::DType::kF16: return half_at<tensor::Float16>(bytes, index);
    case tensor::DType::kBF16: return half_at<tensor::BFloat16>(bytes, index);
  }
  return 0;
}

/// Returns the code of `bits` bits at place `index` of a dense run of little-endian words that are `stride` words
/// apart.
uint32_t dense_code(std::span<const std::byte> bytes, int64_t word_offset, int64_t stride, int64_t index, int bits) {
  const int64_t bit = index * bits;
  const int64_t word = bit / kWordBits;
  const int shift = static_cast<int>(bit % kWordBits);
  uint64_t window = word_at(bytes, word_offset + word * stride);
  if (shift + bits > kWordBits)
    window |= static_cast<uint64_t>(word_at(bytes, word_offset + (word + 1) * stride)) << kWordBits;
  return static_cast<uint32_t>(window >> shift) & ((1u << bits) - 1);
}

/// Returns the code of a row and column of kTilesAwq. Of 32 columns the nibbles have those 0, 8, 16, 24, 1, 9, 17, 25,
/// then those 2 further, and so on.
uint32_t tiled_code(const CodeArray& codes, int64_t cols, int64_t row, int64_t col) {
  constexpr int64_t kRows = 4;
  constexpr int64_t kCols = 64;
  const int64_t in_run = col % 32;
  const int64_t place = col % kCols - in_run + in_run % 8 / 2 * 8 + in_run % 2 * 4 + in_run / 8;
  const int64_t tile = row / kRows * (cols / kCols) + col / kCols;
  const int64_t nibble = (tile * kRows + row % kRows) * kCols + place;
  return static_cast<uint32_t>(codes.bytes[static_cast<size_t>(nibble / 2)]) >> (nibble % 2 * 4) & 15u;
}

float scale_at(const ScaleArray& scales, int64_t index) {
  float value = 1;
  switch (scales.kind) {
    case ScaleKind::kNone: return 1;
    case ScaleKind::kF32: value = float_at(scales.bytes, tensor::DType::kF32, index); break;
    case ScaleKind::kF16: value = float_at(scales.bytes, tensor::DType::kF16, index); break;
    case ScaleKind::kBF16: value = float_at(scales.bytes, tensor::DType::kBF16, index); break;
    case ScaleKind::kE4M3: value = kE4M3[static_cast<size_t>(scales.bytes[static_cast<size_t>(index)])]; break;
    case ScaleKind::kE8M0: value = kE8M0[static_cast<size_t>(scales.bytes[static_cast<size_t>(index)])]; break;
  }
  if (scales.factor != 1.0f) value *= scales.factor;
  if (scales.divisor != 1.0f) value /= scales.divisor;
  return value;
}

size_t scale_bytes(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kNone: return 0;
    case ScaleKind::kF32: return 4;
    case ScaleKind::kF16:
    case ScaleKind::kBF16: return 2;
    case ScaleKind::kE4M3:
    case ScaleKind::kE8M0: return 1;
  }
  return 0;
}

/// Returns the group of every column.
std::vector<int32_t> groups_of(const StoredWeight& weight) {
  std::vector<int32_t> groups(static_cast<size_t>(weight.cols));
  for (int64_t k = 0; k < weight.cols; ++k) {
    int32_t group = 0;
    if (!weight.group_index.empty()) {
      group = static_cast<int32_t>(word_at(weight.group_index, k));
    } else if (weight.group_cols > 0) {
      group = static_cast<int32_t>(k / weight.group_cols);
    }
    groups[static_cast<size_t>(k)] = group;
  }
  return groups;
}

/// Decodes one row from its codes.
void scale_row(const StoredWeight& weight, int64_t row, const std::vector<int32_t>& groups, const uint8_t* codes,
               float* out) {
  int32_t group = -1;
  float scale = 1;
  int zero = 0;
  for (int64_t k = 0; k < weight.cols; ++k) {
    if (groups[static_cast<size_t>(k)] != group) {
      group = groups[static_cast<size_t>(k)];
      scale = group_scale(weight, row, group);
      zero = group_zero(weight, row, group);
    }
    const uint8_t code = codes[k];
    switch (weight.codes.kind) {
      case CodeKind::kUnsigned: out[k] = static_cast<float>(code - zero) * scale; break;
      case CodeKind::kE4M3: out[k] = kE4M3[code] * scale; break;
      case CodeKind::kE5M2: out[k] = kE5M2[code] * scale; break;
      case CodeKind::kE2M1: out[k] = kE2M1[code] * scale; break;
      case CodeKind::kFloat: break;
    }
  }
}

}  // namespace

void read_codes(const StoredWeight& weight, int64_t first, int64_t count, uint8_t* out) {
  const CodeArray& codes = weight.codes;
  const int64_t cols = weight.cols;
  switch (codes.order) {
    case CodeOrder::kRows:
      for (int64_t row = 0; row < count; ++row) {
        // The last row may end before the next would begin.
        const auto begin = static_cast<size_t>((first + row) * codes.row_bytes);
        const auto bytes =
            codes.bytes.subspan(begin, std::min(static_cast<size_t>(codes.row_bytes), codes.bytes.size() - begin));
        uint8_t* const to = out + row * cols;
        if (codes.bits == 8) {
          std::memcpy(to, bytes.data(), static_cast<size_t>(cols));
        } else if (codes.bits == 4) {
          for (int64_t k = 0; k < cols; ++k)
            to[k] = static_cast<uint8_t>(bytes[static_cast<size_t>(k / 2)]) >> (k % 2 * 4) & 15;
        } else {
          for (int64_t k = 0; k < cols; ++k) to[k] = static_cast<uint8_t>(dense_code(bytes, 0, 1, k, codes.bits));
        }
        for (int64_t k = 0; codes.sign_bit != 0 && k < cols; ++k) to[k] ^= codes.sign_bit;
      }
      return;
    case CodeOrder::kRowsAwq:
      for (int64_t row = 0; row < count; ++row) {
        for (int64_t k = 0; k < cols; ++k) {
          const uint32_t word = word_at(codes.bytes, (first + row) * (cols / 8) + k / 8);
          const uint32_t code = word >> (4 * kAwqNibble[static_cast<size_t>(k % 8)]) & 15u;
          out[row * cols + k] = static_cast<uint8_t>(code ^ codes.sign_bit);
        }
      }
      return;
    case CodeOrder::kTilesAwq:
      for (int64_t row = 0; row < count; ++row) {
        for (int64_t k = 0; k < cols; ++k)
          out[row * cols + k] = static_cast<uint8_t>(tiled_code(codes, cols, first + row, k));
      }
      return;
    case CodeOrder::kWordsDownK:
      for (int64_t k = 0; k < cols; ++k) {
        for (int64_t row = 0; row < count; ++row)
          out[row * cols + k] = static_cast<uint8_t>(dense_code(codes.bytes, first + row, weight.rows, k, codes.bits));
      }
      return;
    case CodeOrder::kNibblesAwq:
    case CodeOrder::kNibblesDownN:
      for (int64_t k = 0; k < cols; ++k) {
        for (int64_t row = 0; row < count; ++row) {
          const uint32_t word = word_at(codes.bytes, k * (weight.rows / 8) + (first + row) / 8);
          const auto place = static_cast<size_t>((first + row) % 8);
          const auto nibble = codes.order == CodeOrder::kNibblesAwq ? static_cast<size_t>(kAwqNibble[place]) : place;
          out[row * cols + k] = static_cast<uint8_t>((word >> (4 * nibble) & 15u) ^ codes.sign_bit);
        }
      }
      return;
  }
}

int group_zero(const StoredWeight& weight, int64_t row, int64_t group) {
  const ZeroArray& zeros = weight.zeros;
  const int bits = weight.codes.bits;
  switch (zeros.order) {
    case ZeroArray::Order::kConstant: return zeros.constant;
    case ZeroArray::Order::kDownN:
      return static_cast<int>(dense_code(zeros.bytes, group, zeros.group_count, row, bits)) + zeros.offset;
    case ZeroArray::Order::kAlongN: {
      const int64_t words = weight.rows * bits / kWordBits;
      return static_cast<int>(dense_code(zeros.bytes, group * words, 1, row, bits) ^ zeros.sign_bit) + zeros.offset;
    }
    case ZeroArray::Order::kAlongGroups: {
      const int64_t words = zeros.group_count * bits / kWordBits;
      return static_cast<int>(dense_code(zeros.bytes, row * words, 1, group, bits));
    }
    case ZeroArray::Order::kScaled: {
      const float scale = group_scale(weight, row, group);
      const float product = half_at<tensor::Float16>(zeros.bytes, group * weight.rows + row);
      return scale == 0 ? 0 : static_cast<int>(std::lround(-product / scale));
    }
    case ZeroArray::Order::kNibblesAwq: {
      const uint32_t word = word_at(zeros.bytes, group * (weight.rows / 8) + row / 8);
      return static_cast<int>((word >> (4 * kAwqNibble[static_cast<size_t>(row % 8)]) & 15u) ^ zeros.sign_bit);
    }
  }
  return 0;
}

float group_scale(const StoredWeight& weight, int64_t row, int64_t group) {
  return scale_at(weight.scales,
                  row / weight.group_rows * weight.scales.row_stride + group * weight.scales.group_stride);
}

int64_t StoredOrder::stored(int64_t item) const {
  if (outer == 0 || item < first) return item;
  const int64_t within = (item - first) % (outer * inner * block);
  const int64_t outer_index = within / (inner * block);
  const int64_t inner_index = within / block % inner;
  return item - within + (inner_index * outer + outer_index) * block + within % block;
}

int64_t StoredWeight::group_count() const {
  return group_cols <= 0 ? 1 : (cols + group_cols - 1) / group_cols;
}

bool StoredWeight::has_groups_in_order() const {
  for (int64_t k = 0; !group_index.empty() && k < cols; ++k) {
    if (group_cols == 0 || word_at(group_index, k) != static_cast<uint32_t>(k / group_cols)) return false;
  }
  return true;
}

size_t StoredWeight::stored_bytes() const {
  return codes.bytes.size() + scales.bytes.size() + zeros.bytes.size() + group_index.size() + blocks.bytes.size();
}

void decode_rows(const StoredWeight& weight, int64_t first, int64_t count, float* out) {
  if (weight.has_blocks()) {
    const size_t row_bytes = weight.blocks.bytes.size() / static_cast<size_t>(weight.rows);
    std::vector<float> stored_columns;
    for (int64_t row = 0; row < count; ++row) {
      float* const to = out + row * weight.cols;
      const auto at = static_cast<size_t>(weight.blocks.row_order.stored(first + row));
      decode_blocks(weight.blocks.ggml_type, weight.blocks.bytes.subspan(at * row_bytes, row_bytes),
                    std::span(to, static_cast<size_t>(weight.cols)));
      if (weight.blocks.factor != 1.0f) {
        for (int64_t k = 0; k < weight.cols; ++k) to[k] *= weight.blocks.factor;
      }
      if (weight.blocks.column_order.is_in_order()) continue;
      stored_columns.assign(to, to + weight.cols);
      for (int64_t k = 0; k < weight.cols; ++k)
        to[k] = stored_columns[static_cast<size_t>(weight.blocks.column_order.stored(k))];
    }
    return;
  }
  if (weight.codes.kind == CodeKind::kFloat) {
    for (int64_t i = 0; i < count * weight.cols; ++i)
      out[i] = float_at(weight.codes.bytes, weight.codes.float_dtype, first * weight.cols + i);
    return;
  }
  const std::vector<int32_t> groups = groups_of(weight);
  std::vector<uint8_t> codes(static_cast<size_t>(std::min(count, kDecodeRows) * weight.cols));
  for (int64_t begin = 0; begin < count; begin += kDecodeRows) {
    const int64_t rows = std::min(kDecodeRows, count - begin);
    read_codes(weight, first + begin, rows, codes.data());
    for (int64_t row = 0; row < rows; ++row)
      scale_row(weight, first + begin + row, groups, codes.data() + row * weight.cols,
                out + (begin + row) * weight.cols);
  }
}

Result<void> check_stored(const StoredWeight& weight) {
  if (weight.has_blocks() || weight.codes.kind == CodeKind::kFloat) return {};
  if (weight.scales.kind != ScaleKind::kNone) {
    const auto count = static_cast<int64_t>(weight.scales.bytes.size() / scale_bytes(weight.scales.kind));
    for (int64_t i = 0; i < count; ++i) {
      const float scale = scale_at(weight.scales, i);
      if (!std::isfinite(scale))
        return make_error(ErrorCode::kData, "tensor '{}': scale {} of {} is {}, wanted a finite number", weight.name, i,
                          count, scale);
    }
  }
  const int64_t groups = weight.group_count();
  for (int64_t k = 0; !weight.group_index.empty() && k < weight.cols; ++k) {
    const auto group = static_cast<int32_t>(word_at(weight.group_index, k));
    if (group < 0 || group >= groups)
      return make_error(ErrorCode::kData, "tensor '{}': column {} is in group {}, wanted 0 to {}", weight.name, k,
                        group, groups - 1);
  }
  return {};
}

}  // namespace millrace::weights
