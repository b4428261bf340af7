#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tensor/sum_shards.h"

namespace millrace::tensor {

namespace detail {

constexpr std::array<float, 256> make_e4m3() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    float value = static_cast<float>(exponent == 0 ? code & 7 : 8 + (code & 7)) * 0x1p-9f;
    for (int i = 1; i < exponent; ++i) value *= 2.0f;
    if ((code & 0x7F) == 0x7F) value = std::numeric_limits<float>::quiet_NaN();
    table[static_cast<size_t>(code)] = (code & 0x80) != 0 ? -value : value;
  }
  return table;
}

}  // namespace detail

/// E4M3 ("fn"): sign, 4 bits of exponent, 3 of mantissa; no infinity, 0x7F and 0xFF are NaN, the largest is 448.
inline constexpr std::array<float, 256> kE4M3 = detail::make_e4m3();

/// A matrix [rows, cols] of E4M3 codes in host memory, borrowed. A weight is the number of its code times the f32 scale
/// of its block. Blocks are counted in a stored matrix, of which this may be some rows and columns.
struct Fp8Matrix {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* codes = nullptr;  // [rows, row_bytes]
  int64_t row_bytes = 0;             ///< from one row to the next
  std::vector<float> scales;         // [blocks of rows, column_blocks]
  int64_t column_blocks = 1;
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  int64_t first_row = 0;  ///< of the stored matrix, as is first_col
  int64_t first_col = 0;

  [[nodiscard]] float scale(int64_t row, int64_t col) const {
    const int64_t block = (first_row + row) / block_rows * column_blocks + (first_col + col) / block_cols;
    return scales[static_cast<size_t>(block)];
  }
};

/// Returns the weights of a matrix, [rows, cols].
[[nodiscard]] std::vector<float> decode(const Fp8Matrix& matrix);

/// Returns some rows of a matrix in place.
[[nodiscard]] inline Fp8Matrix row_slice(Fp8Matrix matrix, TermRange rows) {
  matrix.codes += rows.begin * matrix.row_bytes;
  matrix.first_row += rows.begin;
  matrix.rows = rows.size();
  return matrix;
}

/// Returns the rows that share scales in each part of `part_rows` rows: borders of blocks lie at multiples of them,
/// counted from the first row of a part. The stored matrix consists of such parts.
[[nodiscard]] int64_t rows_per_scale(const Fp8Matrix& matrix, int64_t part_rows);

/// Returns some columns of a matrix in place.
[[nodiscard]] inline Fp8Matrix column_slice(Fp8Matrix matrix, TermRange cols) {
  matrix.codes += cols.begin;
  matrix.first_col += cols.begin;
  matrix.cols = cols.size();
  return matrix;
}

/// Rows of zeros, which take the memory of one. It is moved, not copied, since `matrix` points to `row`.
struct Fp8Zeros {
  std::unique_ptr<std::byte[]> row;
  Fp8Matrix matrix;  ///< of `row`
};

/// Returns `rows` rows of zeros to be packed after a matrix.
[[nodiscard]] Fp8Zeros zero_rows(const Fp8Matrix& matrix, int64_t rows);

}  // namespace millrace::tensor
