#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sched/plan/plan_record.h"

namespace millrace::sched {

/// One stage's sums over some time.
struct StageTotals {
  int64_t busy_ns = 0;
  WaitTimes wait;
  std::vector<int64_t> rank_busy_ns;  ///< of the ranks after the leader, whose time is busy_ns
  /// Returns the share of bubbles in the time with requests; 0 when there was no such time.
  [[nodiscard]] double bubble_ratio() const;
};

/// The sums of a link of the ring: link i leads to stage i, the last one back to the head.
struct LinkTotals {
  uint64_t messages = 0;
  uint64_t bytes = 0;
  uint64_t timed = 0;  ///< transfers that latency_ns sums: activations; on the outer links the plan and the output
  int64_t latency_ns = 0;
};

/// The sums of a whole ring over some time.
struct RingTotals {
  explicit RingTotals(size_t stage_count = 0) : stages(stage_count), links(stage_count + 1) {}
  uint64_t plans = 0;  ///< with slices, whose output has come back
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  int64_t schedule_ns = 0;          ///< the head's time for making and sending plans
  int64_t book_ns = 0;              ///< the head's time for booking and delivering outputs
  int64_t in_use_ns = 0;            ///< time with plans in flight
  int64_t occupied_ns = 0;          ///< that time multiplied by the number of plans in flight
  std::vector<StageTotals> stages;  // [stage_count]
  std::vector<LinkTotals> links;    // [stage_count + 1]
  RingTotals& operator+=(const RingTotals& other);
  /// Returns the mean number of plans in flight while there are any.
  [[nodiscard]] double occupancy() const;
};

}  // namespace millrace::sched
