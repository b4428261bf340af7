#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "tensor/dtype.h"

namespace millrace::weights {

/// How a code becomes a number.
enum class CodeKind : uint8_t {
  kFloat,     ///< the codes are numbers of `float_dtype`
  kUnsigned,  ///< an unsigned integer minus a zero point
  kE4M3,
  kE5M2,
  kE2M1,
};

/// The position of the code of row n and column k.
enum class CodeOrder : uint8_t {
  kRows,          ///< row by row, codes densely in the row from the lowest bit of its first byte on
  kWordsDownK,    ///< GPTQ: [K · bits / 32, N] words, in which the codes of one row run along K; 32 codes fill `bits`
                  ///< words
  kNibblesAwq,    ///< AWQ: [K, N / 8] words of 4-bit codes of 8 rows, in the order 0, 2, 4, 6, 1, 3, 5, 7
  kNibblesDownN,  ///< as kNibblesAwq, in the order of rows
  kRowsAwq,       ///< Quark: [N, K / 8] words of 4-bit codes of 8 columns, in the order of kNibblesAwq
  kTilesAwq,      ///< AWQ of version gemv_fast: [N / 4, K / 64] tiles of 4 rows, 64 columns of 4 bits in each
};

/// The codes of a matrix. Rows of kRows begin every `row_bytes`.
struct CodeArray {
  CodeKind kind = CodeKind::kFloat;
  CodeOrder order = CodeOrder::kRows;
  int bits = 8;
  uint8_t sign_bit = 0;                             ///< of two's complement; it is inverted, so that codes are unsigned
  tensor::DType float_dtype = tensor::DType::kF32;  ///< of kFloat
  std::span<const std::byte> bytes;
  int64_t row_bytes = 0;
};

/// The type of a scale.
enum class ScaleKind : uint8_t { kNone, kF32, kF16, kBF16, kE4M3, kE8M0 };

/// Scales [ceil(rows / group_rows), groups of columns], in row-major order or its transpose.
struct ScaleArray {
  ScaleKind kind = ScaleKind::kNone;
  std::span<const std::byte> bytes;
  int64_t row_stride = 0;    ///< elements between the scales of neighbouring groups of rows
  int64_t group_stride = 0;  ///< elements between those of neighbouring groups of columns
  float factor = 1.0f;       ///< multiplies every scale, in f32, before the code; 1 changes nothing
  float divisor = 1.0f;      ///< divides every scale likewise
};

/// Zero points of unsigned codes.
struct ZeroArray {
  enum class Order : uint8_t {
    kConstant,     ///< `constant` for all
    kDownN,        ///< compressed-tensors: [ceil(N · bits / 32), G] words, packed along N
    kAlongN,       ///< GPTQ: [G, N · bits / 32] words, packed along N
    kNibblesAwq,   ///< AWQ: [G, N / 8] words in AWQ's order
    kAlongGroups,  ///< AWQ of version gemv: [N, G · bits / 32] words, packed along the groups
    kScaled,       ///< AWQ of version gemv_fast: f16 [G, N], the product of the zero point and the scale, negated
  };
  Order order = Order::kConstant;
  int constant = 0;
  int offset = 0;        ///< added to what is stored: 1 in the first version of GPTQ
  uint8_t sign_bit = 0;  ///< as that of codes
  std::span<const std::byte> bytes;
  int64_t group_count = 0;
};

/// The order in which the rows, or columns, of a matrix are stored. Those before `first` are in order. The others are
/// in periods of outer · inner · block, of which item (a, b, c) of [outer, inner, block] is stored as (b, a, c).
struct StoredOrder {
  int64_t first = 0;
  int64_t outer = 0;  ///< 0: all are in order
  int64_t inner = 1;
  int64_t block = 1;
  [[nodiscard]] bool is_in_order() const { return outer == 0; }
  /// Returns where an item is stored.
  [[nodiscard]] int64_t stored(int64_t item) const;
  friend bool operator==(const StoredOrder&, const StoredOrder&) = default;
};

/// Blocks of a GGUF file, by ggml's number of their type.
struct BlockArray {
  uint32_t ggml_type = 0;
  std::span<const std::byte> bytes;
  float factor = 1.0f;  ///< multiplies every value
  StoredOrder row_order = {};
  StoredOrder column_order = {};
};

/// A matrix [rows, cols] as a checkpoint stores it, in any format: W[n, k] = (code - zero) · scale, or blocks of GGUF.
/// Rows are output features. A view of mapped files, which outlive it. Plain data; decode_rows() interprets it.
struct StoredWeight {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  CodeArray codes;
  ScaleArray scales;
  ZeroArray zeros;
  int64_t group_rows = 1;                  ///< rows that share a scale
  int64_t group_cols = 0;                  ///< columns that share a scale; 0: all
  std::span<const std::byte> group_index;  ///< i32 [cols]: the group of each column; empty: k / group_cols
  BlockArray blocks;                       ///< used where `blocks.bytes` is not empty

  [[nodiscard]] bool has_blocks() const { return !blocks.bytes.empty(); }
  [[nodiscard]] int64_t group_count() const;
  /// Returns whether neighbouring columns make the groups. GPTQ stores the groups of columns either way.
  [[nodiscard]] bool has_groups_in_order() const;
  /// Returns the bytes that the checkpoint stores.
  [[nodiscard]] size_t stored_bytes() const;
};

/// Decodes rows [first, first + count) to f32 [count, cols]. Products of codes and scales are rounded to f32 once, and
/// those of a scale and its factor before. `cols` of a matrix with blocks is a multiple of the block's size.
void decode_rows(const StoredWeight& weight, int64_t first, int64_t count, float* out);

/// Reads the unsigned codes of rows [first, first + count) into [count, cols]; not of blocks or floating point.
void read_codes(const StoredWeight& weight, int64_t first, int64_t count, uint8_t* out);
/// Returns the scale, or the zero point, of a row's group of columns; not of blocks.
[[nodiscard]] float group_scale(const StoredWeight& weight, int64_t row, int64_t group);
[[nodiscard]] int group_zero(const StoredWeight& weight, int64_t row, int64_t group);

/// Checks what decode_rows() relies on: sizes, groups, and that scales are finite. Error: kData, which names the
/// tensor.
[[nodiscard]] Result<void> check_stored(const StoredWeight& weight);

/// Rows that are decoded together at least: formats that store columns together are read once per as many.
inline constexpr int64_t kDecodeRows = 32;

}  // namespace millrace::weights
