#pragma once

#include <vector>

#include "tensor/code_matrix.h"

namespace millrace::cpu {

/// A head's rows for the key in codes, as columns. A scale of the rows counts for one column and a group of the
/// transpose's rows. So inputs are multiplied by factors, of which each group of rows has its own.
struct TransposedCodes {
  tensor::CodeStorage codes;   ///< [groups · stride, columns] with scales of 1; zeros fill the stride of a group
  std::vector<float> factors;  // [groups, columns]
};

/// Returns whether the heads of such rows can be transposed in codes: all but a factor per column and group is the same
/// for a group, integers less their zero points fit a byte, and the strides leave less than bf16 takes. The answer
/// follows from the format, so that it is the same on every rank.
[[nodiscard]] bool can_transpose_codes(const tensor::CodeMatrix& kv_b);

/// Transposes some rows, for which can_transpose_codes() holds.
[[nodiscard]] TransposedCodes transposed_codes(const tensor::CodeMatrix& keys);

}  // namespace millrace::cpu
