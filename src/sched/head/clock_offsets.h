#pragma once

#include <cstdint>
#include <vector>

#include "sched/plan/plan.h"

namespace millrace::sched {

/// Estimates by how much each stage's clock is ahead of the head's, from the ring's own messages. The smallest
/// difference of the two timestamps on a hop is that hop's shortest delay plus the difference of its clocks; around the
/// ring the clocks cancel out, so the sum is the shortest delay of all hops, which is shared out evenly over them. The
/// error is therefore below that sum. An offset within that error counts as zero: the clocks are the same. The minima
/// are forgotten after two periods, so that drift is followed. Plain data, of the head's thread.
class ClockOffsets {
 public:
  explicit ClockOffsets(size_t stage_count);
  /// One plan: when the head sent it and had its output, and the report of every stage, in order.
  void observe(int64_t sent_ns, const std::vector<StageReport>& reports, int64_t output_ns);
  /// ns to subtract from the stage's timestamps.
  [[nodiscard]] int64_t offset_ns(size_t stage) const { return offsets_[stage]; }

 private:
  void refresh();

  int64_t period_begin_ = 0;
  bool has_samples_ = false;
  std::vector<int64_t> previous_minima_;  // [stage_count + 1] minima per hop of the period before
  std::vector<int64_t> current_minima_;   // [stage_count + 1] minima per hop of this period
  std::vector<int64_t> offsets_;          // [stage_count]
};

}  // namespace millrace::sched
