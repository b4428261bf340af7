#include "cluster/remote/ring_mirror.h"

#include <algorithm>
#include <utility>

namespace millrace::cluster::remote {

RingMirror::RingMirror(RingFigures figures)
    : stage_count_(figures.snapshot.stage_count),
      rank_count_(figures.rank_count),
      window_(figures.snapshot.window),
      began_ns_(figures.as_of_ns) {
  take(std::move(figures));
}

void RingMirror::take(RingFigures figures) {
  if (figures.snapshot.stage_count != stage_count_ || figures.rank_count != rank_count_ ||
      figures.snapshot.window != window_) {
    throw_error(ErrorCode::kData, "it sent statistics of another number of stages, ranks or micro-batches in flight");
  }
  const std::lock_guard lock(mutex_);
  as_of_ns_ = figures.as_of_ns;
  snapshot_ = std::move(figures.snapshot);
  costs_ = std::move(figures.costs);
  for (sched::PlanRecord& record : figures.records) {
    if (!records_.empty() && record.number <= records_.back().number) continue;
    if (records_.size() >= kMaxRecords) records_.pop_front();
    records_.push_back(std::move(record));
  }
}

sched::RingCosts RingMirror::costs() const {
  const std::lock_guard lock(mutex_);
  return costs_;
}

sched::RingSnapshot RingMirror::snapshot(int64_t) const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

std::vector<sched::PlanRecord> RingMirror::records_after(uint64_t after, size_t limit) const {
  const std::lock_guard lock(mutex_);
  const auto newer = std::ranges::upper_bound(records_, after, {}, &sched::PlanRecord::number);
  const auto wanted = std::min(records_.end() - newer, static_cast<std::ptrdiff_t>(limit));
  return {records_.end() - wanted, records_.end()};
}

int64_t RingMirror::as_of_ns(int64_t) const {
  const std::lock_guard lock(mutex_);
  return as_of_ns_;
}

}  // namespace millrace::cluster::remote
