#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weights/stored_weight.h"

namespace millrace::test {

/// A tensor as the converter holds it.
struct RawTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
  [[nodiscard]] size_t row_bytes() const { return bytes.size() / static_cast<size_t>(shape.front()); }
};

/// Returns a tensor of BF16 or F32 in F32.
[[nodiscard]] RawTensor to_f32(const RawTensor& tensor);
/// Returns `count` rows of each plane of a tensor [planes, rows, columns], from `first` on, `step` apart.
[[nodiscard]] RawTensor rows_of(const RawTensor& tensor, int64_t first, int64_t count, int64_t step);
/// Swaps the last two dimensions of a tensor of 16-bit numbers.
[[nodiscard]] RawTensor transposed(const RawTensor& tensor);
/// Returns rows of which 2i and 2i + 1 are rows i and i + half of their head.
[[nodiscard]] RawTensor paired(const RawTensor& tensor, int64_t heads);
/// Returns rows, or columns of a matrix, in the order in which a file stores them.
[[nodiscard]] RawTensor ordered_rows(const RawTensor& tensor, const weights::StoredOrder& order);
[[nodiscard]] RawTensor ordered_columns(const RawTensor& tensor, const weights::StoredOrder& order);
/// Returns rows [first, first + count) of a matrix times a number, in F32, and the others as they are.
[[nodiscard]] RawTensor scaled_rows(const RawTensor& tensor, int64_t first, int64_t count, float factor);
/// Returns blocks of a byte of scale and 16 bytes of codes. Byte i of safetensors has codes 2i and 2i + 1, of files
/// codes i and i + 16.
[[nodiscard]] RawTensor mxfp4_blocks(const RawTensor& codes, const RawTensor& scales);
/// Returns tensors of one shape as one of a further dimension.
[[nodiscard]] RawTensor stack_of(const std::map<int64_t, RawTensor>& parts);

}  // namespace millrace::test
