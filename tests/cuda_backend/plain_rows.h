#pragma once

#include <algorithm>

#include "base/check.h"
#include "cuda/kernels.h"

/// The rows of a ragged batch, for the plain loops.
namespace millrace::cuda {

/// Calls each(row, sequence, position) for every row of a sequence.
template <class Each>
void each_row(const DeviceBatch& batch, const Each& each) {
  for (int32_t s = 0; s < *batch.sequence_count; ++s) {
    for (int32_t row = batch.row_begin[s]; row < batch.row_begin[s + 1]; ++row) {
      each(row, s, batch.prefix[s] + row - batch.row_begin[s]);
    }
  }
}

/// Checks that the bounds, which size grids, hold the batch at the time of running.
inline void check_bounds(const char* op, const DeviceBatch& batch, const BatchBounds& bounds) {
  const int32_t count = *batch.sequence_count;
  int32_t longest = 0;
  for (int32_t s = 0; s < count; ++s) longest = std::max(longest, batch.row_begin[s + 1] - batch.row_begin[s]);
  CHECK(count <= bounds.sequences && batch.row_begin[count] <= bounds.rows && longest <= bounds.sequence_rows &&
            batch.split_begin[count] <= bounds.splits,
        "{}: launched for {} sequences, {} rows, {} of one, {} splits; found {}, {}, {}, {}", op, bounds.sequences,
        bounds.rows, bounds.sequence_rows, bounds.splits, count, batch.row_begin[count], longest,
        batch.split_begin[count]);
}

inline uint32_t page_of(const DeviceBatch& batch, const DeviceKvCache& cache, int32_t sequence, int32_t position) {
  return batch.pages[batch.page_begin[sequence] + position / cache.page_size];
}

}  // namespace millrace::cuda
