#include "tensor/fp8.h"

#include <numeric>

namespace millrace::tensor {

std::vector<float> decode(const Fp8Matrix& matrix) {
  std::vector<float> weights;
  weights.reserve(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const std::byte* const codes = matrix.codes + row * matrix.row_bytes;
    for (int64_t col = 0; col < matrix.cols; ++col) {
      weights.push_back(kE4M3[static_cast<size_t>(codes[col])] * matrix.scale(row, col));
    }
  }
  return weights;
}

int64_t rows_per_scale(const Fp8Matrix& matrix, int64_t part_rows) {
  const bool has_one_block = std::ssize(matrix.scales) == matrix.column_blocks;
  return has_one_block ? part_rows : std::gcd(matrix.block_rows, part_rows);
}

Fp8Zeros zero_rows(const Fp8Matrix& matrix, int64_t rows) {
  Fp8Zeros zeros{.row = std::make_unique<std::byte[]>(static_cast<size_t>(matrix.cols)), .matrix = {}};
  zeros.matrix = {.name = matrix.name,
                  .rows = rows,
                  .cols = matrix.cols,
                  .codes = zeros.row.get(),
                  .row_bytes = 0,
                  .scales = {1.0f},
                  .block_rows = rows,
                  .block_cols = matrix.cols};
  return zeros;
}

}  // namespace millrace::tensor
