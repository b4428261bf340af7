#pragma once

#include <deque>
#include <mutex>

#include "cluster/remote/ring_messages.h"
#include "sched/head/ring_view.h"

namespace millrace::cluster::remote {

/// The statistics of a ring in another process, as its messages describe them, for as long as one connection lasts.
/// Shared by the RemoteEngine, which feeds it, and by those who still read it when the ring is gone. Thread-safe.
class RingMirror final : public sched::RingView {
 public:
  /// `figures`: the first ones of the connection.
  explicit RingMirror(RingFigures figures);

  /// Takes the next figures. Throws ErrorException (kData) if they are of a ring of another shape.
  void take(RingFigures figures);

  [[nodiscard]] sched::RingCosts costs() const override;
  /// Returns the newest sums that have arrived.
  [[nodiscard]] sched::RingSnapshot snapshot(int64_t now_ns) const override;
  [[nodiscard]] std::vector<sched::PlanRecord> records_after(uint64_t after, size_t limit = kMaxRecords) const override;
  [[nodiscard]] size_t stage_count() const override { return stage_count_; }
  [[nodiscard]] size_t rank_count() const override { return rank_count_; }
  [[nodiscard]] size_t window() const override { return window_; }
  [[nodiscard]] int64_t as_of_ns(int64_t now_ns) const override;
  [[nodiscard]] int64_t began_ns() const override { return began_ns_; }

 private:
  const size_t stage_count_;
  const size_t rank_count_;
  const size_t window_;
  const int64_t began_ns_;

  mutable std::mutex mutex_;
  int64_t as_of_ns_ = 0;  // guarded by mutex_, as all below
  sched::RingSnapshot snapshot_;
  sched::RingCosts costs_;
  std::deque<sched::PlanRecord> records_;  // at most kMaxRecords, by their numbers
};

}  // namespace millrace::cluster::remote
