#include "sched/stage/pooler.h"

#include <cmath>

#include "base/check.h"
#include "tensor/host_tensor.h"

namespace millrace::sched {
namespace {

std::vector<float> floats_of(tensor::Matrix rows, int64_t row) {
  std::vector<float> values(static_cast<size_t>(rows.cols));
  tensor::read_floats({.name = "row", .dtype = rows.dtype, .shape = {rows.rows, rows.cols}, .data = rows.data},
                      row * rows.cols, rows.cols, values.data());
  return values;
}

tensor::LogitFault fault_of(std::span<const float> values) {
  tensor::LogitFault fault = tensor::LogitFault::kNone;
  for (const float value : values) {
    if (std::isnan(value)) return tensor::LogitFault::kNan;
    if (std::isinf(value)) fault = tensor::LogitFault::kInfinity;
  }
  return fault;
}

}  // namespace

uint32_t Pooler::row_count(const PlanSlice& slice) {
  switch (slice.pooling) {
    case SlicePooling::kNone: return 0;
    case SlicePooling::kFirstRow:
    case SlicePooling::kLastRow: return 1;
    case SlicePooling::kSum:
    case SlicePooling::kMean: break;
  }
  return slice.token_count;
}

uint32_t Pooler::first_row(const PlanSlice& slice) {
  return slice.pooling == SlicePooling::kLastRow ? slice.token_count - 1 : 0;
}

void Pooler::add_rows(const PlanSlice& slice, tensor::Matrix rows) {
  std::vector<double>& sum = sums_[slice.slot];
  if (slice.prefix == 0) sum.assign(static_cast<size_t>(rows.cols), 0.0);
  CHECK(sum.size() == static_cast<size_t>(rows.cols), "slot {}: a slice at {} adds to a sum that has not begun",
        slice.slot.value(), slice.prefix);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const std::vector<float> values = floats_of(rows, row);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{values[i]};
  }
}

void Pooler::pool(const PlanSlice& slice, tensor::Matrix rows, SliceOutput& output) {
  CHECK(rows.rows == row_count(slice), "{} rows for a slice that pools {}", rows.rows, row_count(slice));
  const bool is_mean = slice.pooling == SlicePooling::kMean;
  if (is_mean || slice.pooling == SlicePooling::kSum) add_rows(slice, rows);
  if (!slice.returns_vector()) return;
  if (is_mean) {
    const double tokens = slice.prefix + slice.token_count;
    for (const double sum : sums_[slice.slot]) output.pooled.push_back(static_cast<float>(sum / tokens));
    sums_.erase(slice.slot);
  } else {
    output.pooled = floats_of(rows, 0);
  }
  output.fault = fault_of(output.pooled);
  if (output.fault != tensor::LogitFault::kNone) output.pooled.clear();
}

}  // namespace millrace::sched
