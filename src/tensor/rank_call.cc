#include "tensor/rank_call.h"

#include <fmt/core.h>

#include "base/check.h"

namespace millrace::tensor {
namespace {

std::string describe(const RankCall& call) {
  if (call.kind == RankCall::Kind::kAllReduceIntegers)
    return fmt::format("all_reduce of integers [{}, {}]", call.rows, call.cols);
  return fmt::format("{} of {} [{}, {}]", call.kind == RankCall::Kind::kAllReduce ? "all_reduce" : "all_gather",
                     to_string(call.dtype), call.rows, call.cols);
}

}  // namespace

std::string describe_difference(int32_t rank, const RankCall& call, int32_t other_rank, const RankCall& other_call) {
  return fmt::format("the ranks of a stage disagree: rank {} calls {}, rank {} calls {}", rank, describe(call),
                     other_rank, describe(other_call));
}

void check_all_reduce(const Matrix& sums) {
  CHECK(sums.dtype == DType::kF32, "all_reduce of {}, wanted f32", to_string(sums.dtype));
}

void check_all_gather(const Matrix& slice, const Matrix& out, int32_t size) {
  CHECK(out.dtype == slice.dtype && out.rows == slice.rows && out.cols == slice.cols * size,
        "all_gather of {} slices [{}, {}] into [{}, {}]", size, slice.rows, slice.cols, out.rows, out.cols);
}

}  // namespace millrace::tensor
