#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sched/head/ring_costs.h"
#include "sched/head/ring_counters.h"
#include "sched/plan/plan_record.h"

namespace millrace::sched {

/// What others may read of a ring's statistics, wherever the ring runs. Thread-safe. Times are ns on the clock of the
/// ring's head; `now_ns` is the time on the clock of this process.
class RingView {
 public:
  static constexpr size_t kMaxRecords = 4096;  ///< complete records that a view keeps

  virtual ~RingView() = default;
  [[nodiscard]] virtual RingCosts costs() const = 0;
  [[nodiscard]] virtual RingSnapshot snapshot(int64_t now_ns) const = 0;
  /// Returns the newest complete records whose number is above `after`, at most `limit` of them, the oldest first.
  [[nodiscard]] virtual std::vector<PlanRecord> records_after(uint64_t after, size_t limit = kMaxRecords) const = 0;
  [[nodiscard]] virtual size_t stage_count() const = 0;
  /// Returns the ranks of each stage.
  [[nodiscard]] virtual size_t rank_count() const = 0;
  [[nodiscard]] virtual size_t window() const = 0;
  /// Returns the time that snapshot() describes. Whatever was recorded before is in the records too.
  [[nodiscard]] virtual int64_t as_of_ns(int64_t now_ns) const = 0;
  /// Returns when the view began, where its numbers may begin anew while this process runs; 0 where they never do.
  [[nodiscard]] virtual int64_t began_ns() const = 0;
};

}  // namespace millrace::sched
