#pragma once

#include <span>
#include <vector>

#include "tensor/host_tensor.h"
#include "tensor/sum_shards.h"
#include "tensor/w8.h"

/// The parts of matrices that ranks load.
namespace millrace::tensor {

/// A part of a matrix that owns its bytes.
struct HostSlice {
  std::vector<std::byte> bytes;
  HostTensor tensor;  ///< of `bytes`
};

/// A part of an 8-bit matrix that owns its values and scales.
struct W8Slice {
  std::vector<std::byte> values;
  std::vector<std::byte> scales;
  W8Matrix matrix;  ///< of both
};

/// Returns some rows of a matrix in place.
[[nodiscard]] HostTensor row_slice(const HostTensor& matrix, TermRange rows);
[[nodiscard]] W8Matrix row_slice(const W8Matrix& matrix, TermRange rows);

/// Copies rows of a matrix, from row `first` on. Rows after its last one are zeros.
[[nodiscard]] HostSlice padded_rows(const HostTensor& matrix, int64_t first, int64_t count);
[[nodiscard]] W8Slice padded_rows(const W8Matrix& matrix, int64_t first, int64_t count);

/// Copies some columns of a matrix. With one scale per group they begin with a group.
[[nodiscard]] HostSlice column_slice(const HostTensor& matrix, TermRange cols);
[[nodiscard]] W8Slice column_slice(const W8Matrix& matrix, TermRange cols);

/// Copies the rows of the given numbers, in their order.
[[nodiscard]] HostSlice gather_rows(const HostTensor& matrix, std::span<const int64_t> rows);
[[nodiscard]] W8Slice gather_rows(const W8Matrix& matrix, std::span<const int64_t> rows);

/// Copies the columns first, first + step, … of a matrix as the rows of another: [count, matrix rows].
[[nodiscard]] HostSlice columns_as_rows(const HostTensor& matrix, int64_t first, int64_t step, int64_t count);

}  // namespace millrace::tensor
