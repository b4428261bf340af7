#include "sched/head/ring_stats.h"

#include <algorithm>
#include <utility>

#include "sched/plan/plan.h"
#include "sched/plan/plan_output.h"

namespace millrace::sched {

RingStats::RingStats(size_t stage_count, size_t window, size_t rank_count)
    : stage_count_(std::max<size_t>(stage_count, 1)),
      rank_count_(std::max<size_t>(rank_count, 1)),
      window_(window),
      recorder_(stage_count_, rank_count_),
      counters_(stage_count_, window) {}

void RingStats::ring_attached(RingEpoch epoch, int64_t now_ns) {
  recorder_.ring_attached(epoch);
  const std::lock_guard lock(mutex_);
  counters_.ring_attached(now_ns);
}

void RingStats::ring_broken(int64_t now_ns) {
  recorder_.ring_broken();
  const std::lock_guard lock(mutex_);
  counters_.end_all_steps();
  counters_.set_in_flight(0, now_ns, false);
}

void RingStats::plan_sent(const Plan& plan, const PlanSent& sent) {
  recorder_.plan_sent(plan, sent);
  if (plan.slices.empty() && plan.step == 0) return;
  const std::lock_guard lock(mutex_);
  if (plan.step > 0) counters_.add_step(plan.step, !plan.slices.empty());
  if (plan.slices.empty()) return;
  counters_.set_in_flight(recorder_.in_flight(), sent.sent_ns, sent.profile);
}

void RingStats::output_booked(const PlanOutput& output, uint64_t bytes, int64_t arrived_ns, int64_t booked_ns) {
  if (const OpenRecord* open = recorder_.output_booked(output, arrived_ns, booked_ns)) {
    const std::lock_guard lock(mutex_);
    counters_.add_output(*open, output, bytes);
    if (open->is_step) counters_.end_step();
    if (open->record.sequences > 0) counters_.set_in_flight(recorder_.in_flight(), arrived_ns, open->profile);
  }
  while (auto complete = recorder_.take_complete()) {
    const std::lock_guard lock(mutex_);
    counters_.add_stages(*complete, booked_ns);
    complete->record.number = next_number_++;
    if (records_.size() >= kMaxRecords) records_.pop_front();
    records_.push_back(std::move(complete->record));
  }
}

void RingStats::set_costs(RingCosts costs) {
  const std::lock_guard lock(mutex_);
  costs_ = std::move(costs);
}

RingCosts RingStats::costs() const {
  const std::lock_guard lock(mutex_);
  return costs_;
}

RingSnapshot RingStats::snapshot(int64_t now_ns) const {
  const std::lock_guard lock(mutex_);
  return counters_.snapshot(now_ns);
}

std::vector<PlanRecord> RingStats::records_after(uint64_t after, size_t limit) const {
  const std::lock_guard lock(mutex_);
  const uint64_t newest = next_number_ - 1;
  const uint64_t wanted = after >= newest ? 0 : std::min<uint64_t>({newest - after, limit, records_.size()});
  return {records_.end() - static_cast<std::ptrdiff_t>(wanted), records_.end()};
}

}  // namespace millrace::sched
