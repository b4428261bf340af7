#pragma once

#include <cstdint>
#include <string>

#include "tensor/collective.h"

namespace millrace::tensor {

/// A call of a collective, which all ranks of a group make with equal values.
struct RankCall {
  enum class Kind : uint8_t { kAllReduce, kAllReduceIntegers, kAllGather };
  Kind kind = Kind::kAllReduce;
  DType dtype = DType::kF32;  ///< of no meaning for integers
  int64_t rows = 0;
  int64_t cols = 0;  ///< of the rank's own matrix
  friend bool operator==(const RankCall&, const RankCall&) = default;
};

[[nodiscard]] inline RankCall call_of(RankCall::Kind kind, const Matrix& matrix) {
  return {.kind = kind, .dtype = matrix.dtype, .rows = matrix.rows, .cols = matrix.cols};
}

[[nodiscard]] inline RankCall call_of(const IntMatrix& sums) {
  return {.kind = RankCall::Kind::kAllReduceIntegers, .rows = sums.rows, .cols = sums.cols};
}

/// Returns why a group whose ranks make different calls has to end.
[[nodiscard]] std::string describe_difference(int32_t rank, const RankCall& call, int32_t other_rank,
                                              const RankCall& other_call);

/// Checks the matrices of a call against the contract of tensor::Collective.
void check_all_reduce(const Matrix& sums);
void check_all_gather(const Matrix& slice, const Matrix& out, int32_t size);

}  // namespace millrace::tensor
