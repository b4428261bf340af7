#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "sched/head/plan_recorder.h"
#include "sched/head/ring_view.h"

namespace millrace::sched {

/// Observes a ring: the head's thread reports events, any thread reads counters, records and costs. A PlanRecorder
/// makes the records, RingCounters hold the sums; this class is the lock between the threads. Owned by the head.
class RingStats final : public RingView {
 public:
  /// `rank_count`: of each stage.
  RingStats(size_t stage_count, size_t window, size_t rank_count = 1);

  // These run on the head's thread. Times are ns on the head's clock.
  void ring_attached(RingEpoch epoch, int64_t now_ns);
  void ring_broken(int64_t now_ns);
  void request_arrived(int64_t at_ns) { recorder_.request_arrived(at_ns); }
  /// Notes that nothing can be scheduled although the window has room.
  void starved() { recorder_.starved(); }
  void plan_sent(const Plan& plan, const PlanSent& sent);
  void output_booked(const PlanOutput& output, uint64_t bytes, int64_t arrived_ns, int64_t booked_ns);
  /// Returns the shortest time of the last seconds that a plan spends outside of stages; 0 until known.
  [[nodiscard]] double transit_us() const { return recorder_.transit_us(); }
  /// Replaces what costs() returns.
  void set_costs(RingCosts costs);

  // These may be called from any thread.
  [[nodiscard]] RingCosts costs() const override;
  [[nodiscard]] RingSnapshot snapshot(int64_t now_ns) const override;
  [[nodiscard]] std::vector<PlanRecord> records_after(uint64_t after, size_t limit = kMaxRecords) const override;
  [[nodiscard]] size_t stage_count() const override { return stage_count_; }
  [[nodiscard]] size_t rank_count() const override { return rank_count_; }
  [[nodiscard]] size_t window() const override { return window_; }
  [[nodiscard]] int64_t as_of_ns(int64_t now_ns) const override { return now_ns; }
  [[nodiscard]] int64_t began_ns() const override { return 0; }

 private:
  const size_t stage_count_;
  const size_t rank_count_;
  const size_t window_;
  PlanRecorder recorder_;  // on the head's thread

  mutable std::mutex mutex_;
  RingCounters counters_;  // guarded by mutex_, as all below
  RingCosts costs_;
  std::deque<PlanRecord> records_;  // complete ones, at most kMaxRecords
  uint64_t next_number_ = 1;
};

}  // namespace millrace::sched
