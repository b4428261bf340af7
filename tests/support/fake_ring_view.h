#pragma once

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "sched/head/ring_view.h"

namespace millrace::test {

/// The statistics of a ring that does not exist: a test says what has been recorded. Thread-safe.
class FakeRingView final : public sched::RingView {
 public:
  explicit FakeRingView(size_t stage_count, size_t rank_count = 1, size_t window = 2)
      : rank_count_(rank_count), snapshot_(make_snapshot(stage_count, window)) {}

  /// Returns a record of a plan that each stage has computed for `number` ns.
  [[nodiscard]] static sched::PlanRecord make_record(uint64_t number, size_t stage_count, size_t rank_count = 1) {
    sched::PlanRecord record;
    record.number = number;
    record.plan = PlanId(number + 100);
    record.epoch = RingEpoch(3);
    record.sent_ns = 5;
    record.prefill_rows = 7;
    record.starved = true;
    record.stages.resize(stage_count);
    for (sched::StageSpan& span : record.stages) {
      span.known = true;
      span.end_ns = static_cast<int64_t>(number);
      span.wait[sched::WaitCause::kHeadLate] = 9;
      span.ranks.resize(rank_count - 1, {.known = true, .begin_ns = 10, .end_ns = 11});
    }
    return record;
  }

  /// Records so many more plans.
  void record_plans(size_t count) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      records_.push_back(make_record(records_.size() + 1, snapshot_.stage_count, rank_count_));
      ++snapshot_.since_start.plans;
    }
  }
  void set_costs(sched::RingCosts costs) {
    const std::lock_guard lock(mutex_);
    costs_ = std::move(costs);
  }
  /// Says how many steps with the other rings have begun, and whether the last one goes on.
  void set_steps(uint64_t count, bool goes_on) {
    const std::lock_guard lock(mutex_);
    snapshot_.steps.without_rows = count;
    snapshot_.steps.in_flight = goes_on ? 1 : 0;
  }
  /// Describes a later moment from now on. Without a call, as_of_ns() follows the clock.
  void set_as_of_ns(int64_t ns) {
    const std::lock_guard lock(mutex_);
    as_of_ns_ = ns;
  }

  [[nodiscard]] sched::RingCosts costs() const override {
    const std::lock_guard lock(mutex_);
    return costs_;
  }
  [[nodiscard]] sched::RingSnapshot snapshot(int64_t) const override {
    const std::lock_guard lock(mutex_);
    return snapshot_;
  }
  [[nodiscard]] std::vector<sched::PlanRecord> records_after(uint64_t after,
                                                             size_t limit = kMaxRecords) const override {
    const std::lock_guard lock(mutex_);
    const size_t newer = after >= records_.size() ? 0 : std::min(records_.size() - after, limit);
    return {records_.end() - static_cast<std::ptrdiff_t>(newer), records_.end()};
  }
  [[nodiscard]] size_t stage_count() const override { return snapshot(0).stage_count; }
  [[nodiscard]] size_t rank_count() const override { return rank_count_; }
  [[nodiscard]] size_t window() const override { return snapshot(0).window; }
  [[nodiscard]] int64_t as_of_ns(int64_t now_ns) const override {
    const std::lock_guard lock(mutex_);
    return as_of_ns_ == 0 ? now_ns : as_of_ns_;
  }
  [[nodiscard]] int64_t began_ns() const override { return 0; }

 private:
  static sched::RingSnapshot make_snapshot(size_t stage_count, size_t window) {
    sched::RingSnapshot snapshot;
    snapshot.stage_count = stage_count;
    snapshot.window = window;
    for (sched::RingTotals* totals : {&snapshot.since_start, &snapshot.profile, &snapshot.recent}) {
      *totals = sched::RingTotals(stage_count);
    }
    snapshot.occupancy_ns.resize(window + 1);
    return snapshot;
  }

  const size_t rank_count_;
  mutable std::mutex mutex_;
  int64_t as_of_ns_ = 0;  // guarded by mutex_, as all below
  sched::RingSnapshot snapshot_;
  sched::RingCosts costs_;
  std::vector<sched::PlanRecord> records_;
};

}  // namespace millrace::test
