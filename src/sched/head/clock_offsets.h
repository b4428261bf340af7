#pragma once

#include <cstdint>
#include <vector>

#include "sched/plan/stage_report.h"

namespace millrace::sched {

/// Estimates from the ring's messages by how much each stage's clock is ahead of the head's. The smallest difference of
/// a hop's two timestamps is its shortest delay plus the difference of its clocks. Around the ring the clocks cancel
/// out: the sum is the shortest delay of all hops, which is spread evenly over them. The error is therefore below that
/// sum, and a smaller offset counts as zero. Minima are forgotten after two periods, to follow drift. Owned by
/// PlanRecorder, on the head's thread.
class ClockOffsets {
 public:
  explicit ClockOffsets(size_t stage_count);
  /// Adds one plan: when the head sent it and received its output, and the reports of all stages in order.
  void observe(int64_t sent_ns, const std::vector<StageReport>& reports, int64_t output_ns);
  /// Returns the ns to subtract from the stage's timestamps.
  [[nodiscard]] int64_t offset_ns(size_t stage) const { return offsets_[stage]; }

 private:
  void refresh();

  int64_t period_begin_ = 0;
  bool has_samples_ = false;
  std::vector<int64_t> previous_minima_;  // [stage_count + 1] minima per hop of the previous period
  std::vector<int64_t> current_minima_;   // [stage_count + 1] minima per hop of this period
  std::vector<int64_t> offsets_;          // [stage_count]
};

}  // namespace millrace::sched
