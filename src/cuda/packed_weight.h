#pragma once

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/weight_layout.h"

/// The packed layout of weights (kernels.h), and properties of GEMMs that the weight's shape determines.
namespace millrace::cuda {

/// Panels of one block of the GEMM for many rows.
constexpr int32_t kWidePanels = 2;
/// Multiprocessors of the device for which sums are split: that of an H100 or H200.
constexpr int32_t kPlannedMultiprocessors = 132;
/// The time of ending one block's sum and beginning the next, in steps.
constexpr int32_t kStepsPerBlock = 8;

/// Returns the time, in steps, of `blocks` blocks of `steps` steps each on `multiprocessors`.
constexpr int64_t steps_in_waves(int64_t blocks, int32_t steps, int32_t multiprocessors) {
  return (blocks + multiprocessors - 1) / multiprocessors * (steps + kStepsPerBlock);
}

/// Returns the number of ranges of steps into which every sum with this weight is split. The ranges' sums are added in
/// order. The number of rows decides whether different blocks compute them; the result does not depend on that.
constexpr int32_t split_count(int32_t panels, int32_t steps) {
  constexpr int32_t kMaxSplits = 16;
  constexpr int32_t kMinSteps = 4;
  const int64_t blocks = ceil_div(panels, kWidePanels);
  int32_t best = 1;
  for (int32_t splits = 2; splits <= kMaxSplits && splits * kMinSteps <= steps && blocks < kPlannedMultiprocessors;
       ++splits) {
    const auto time = [&](int32_t count) {
      return steps_in_waves(blocks * count, ceil_div(steps, count), kPlannedMultiprocessors);
    };
    if (time(splits) < time(best)) best = splits;
  }
  return best;
}
/// Returns the splits of every sum with a weight that has no shards.
constexpr int32_t splits_of_weight(const DeviceWeight& weight, int32_t steps) {
  const int32_t features = weight.whole_features > 0 ? weight.whole_features : weight.out_features;
  return split_count(panel_count(features, weight.gate_up), steps);
}
/// Returns the first step of a split; for `splits` it is the end.
constexpr __host__ __device__ int32_t split_begin(int32_t split, int32_t splits, int32_t steps) {
  return static_cast<int32_t>(static_cast<int64_t>(steps) * split / splits);
}

}  // namespace millrace::cuda
