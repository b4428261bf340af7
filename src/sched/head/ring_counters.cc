#include "sched/head/ring_counters.h"

#include <algorithm>
#include <utility>

#include "sched/plan/plan_output.h"

namespace millrace::sched {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

/// Links after the first also carry activations.
uint64_t messages_per_plan(size_t link) {
  return link == 0 ? 1 : 2;
}

/// Counts `value` in the histogram's bucket that its upper bounds say.
template <class Bounds, class Counts, class Value>
void count_in_histogram(const Bounds& bounds, Counts& counts, Value value) {
  ++counts[static_cast<size_t>(std::ranges::lower_bound(bounds, value) - bounds.begin())];
}

}  // namespace

RingCounters::RingCounters(size_t stage_count, size_t window)
    : stage_count_(stage_count),
      window_(window),
      since_start_(stage_count),
      profile_(stage_count),
      occupancy_ns_(window + 1) {
  for (Bucket& bucket : buckets_) bucket.totals = RingTotals(stage_count);
}

void RingCounters::ring_attached(int64_t now_ns) {
  if (epochs_++ == 0) attached_ns_ = in_flight_since_ = now_ns;
  steps_.newest = steps_.newest_with_rows = steps_.in_flight = 0;
}

void RingCounters::add_step(uint64_t step, bool has_rows) {
  ++(has_rows ? steps_.with_rows : steps_.without_rows);
  steps_.newest = step;
  ++steps_.in_flight;
  if (has_rows) steps_.newest_with_rows = step;
}

void RingCounters::add_output(const OpenRecord& open, const PlanOutput& output, uint64_t output_bytes) {
  const PlanRecord& record = open.record;
  RingTotals found(stage_count_);
  if (record.sequences > 0) {
    found.plans = 1;
    found.prefill_tokens = record.prefill_rows;
    found.decode_tokens = record.decode_rows;
    found.schedule_ns = record.sent_ns - record.schedule_ns;
    found.book_ns = record.booked_ns - record.output_ns;
  }
  // A plan grows by the reports that the stages on its way put into it.
  uint64_t plan_bytes = open.plan_bytes;
  for (size_t link = 0; link < stage_count_; ++link) {
    found.links[link].messages = 1;
    found.links[link].bytes = plan_bytes;
    const auto reported = std::ranges::count(output.reports, StageId(static_cast<uint32_t>(link)), &StageReport::stage);
    plan_bytes += static_cast<uint64_t>(reported) * StageReport::kWireBytes;
  }
  found.links.back() = {.messages = 1, .bytes = output_bytes, .timed = 0, .latency_ns = 0};
  add(found, open.profile, record.booked_ns);
  if (record.sequences == 0 || open.profile) return;
  const int64_t latency_ns = record.output_ns - record.sent_ns;
  count_in_histogram(kRingLatencyBounds, latency_counts_, static_cast<double>(latency_ns) * 1e-9);
  latency_sum_ns_ += latency_ns;
  count_in_histogram(kTokenCountBounds, token_counts_, found.prefill_tokens + found.decode_tokens);
}

void RingCounters::add_stages(const OpenRecord& complete, int64_t now_ns) {
  const PlanRecord& record = complete.record;
  RingTotals found(stage_count_);
  int64_t left_ns = record.sent_ns;
  for (size_t s = 0; s < stage_count_; ++s) {
    const StageSpan& span = record.stages[s];
    found.stages[s] = {.busy_ns = span.end_ns - span.begin_ns, .wait = span.wait, .rank_busy_ns = {}};
    for (const RankSpan& rank : span.ranks) found.stages[s].rank_busy_ns.push_back(rank.end_ns - rank.begin_ns);
    found.links[s] = {.messages = messages_per_plan(s) - 1,
                      .bytes = s == 0 ? 0 : record.stages[s - 1].sent_bytes,
                      .timed = 1,
                      .latency_ns = std::max<int64_t>(span.input_ns - left_ns, 0)};
    left_ns = span.end_ns;
  }
  found.links.back() = {
      .messages = 0, .bytes = 0, .timed = 1, .latency_ns = std::max<int64_t>(record.output_ns - left_ns, 0)};
  add(found, complete.profile, now_ns);
}

void RingCounters::add(const RingTotals& found, bool profile, int64_t now_ns) {
  if (profile) {
    profile_ += found;
    return;
  }
  since_start_ += found;
  bucket(now_ns) += found;
}

void RingCounters::set_in_flight(uint32_t in_flight, int64_t now_ns, bool profile) {
  const int64_t passed = now_ns - std::exchange(in_flight_since_, now_ns);
  if (epochs_ > 0 && !profile && in_flight_ < occupancy_ns_.size()) occupancy_ns_[in_flight_] += passed;
  if (in_flight_ > 0 && !profile) {
    for (RingTotals* totals : {&since_start_, &bucket(now_ns)}) {
      totals->in_use_ns += passed;
      totals->occupied_ns += passed * in_flight_;
    }
  }
  in_flight_ = in_flight;
}

RingTotals& RingCounters::bucket(int64_t now_ns) {
  const int64_t second = now_ns / kSecondNs;
  Bucket& found = buckets_[static_cast<size_t>(second) % buckets_.size()];
  if (found.second != second) found = {second, RingTotals(stage_count_)};
  return found.totals;
}

RingSnapshot RingCounters::snapshot(int64_t now_ns) const {
  const auto covered = static_cast<int64_t>(buckets_.size()) - 1;
  const int64_t oldest = now_ns / kSecondNs - covered;
  RingSnapshot snapshot;
  snapshot.stage_count = stage_count_;
  snapshot.window = window_;
  snapshot.in_flight = in_flight_;
  snapshot.epochs = epochs_;
  snapshot.steps = steps_;
  snapshot.since_start = since_start_;
  snapshot.profile = profile_;
  snapshot.recent = RingTotals(stage_count_);
  for (const Bucket& found : buckets_) {
    if (found.second >= oldest) snapshot.recent += found.totals;
  }
  snapshot.recent_ns = epochs_ == 0 ? 0 : now_ns - std::max(oldest * kSecondNs, attached_ns_);
  snapshot.occupancy_ns = occupancy_ns_;
  snapshot.latency_counts = latency_counts_;
  snapshot.latency_sum_ns = latency_sum_ns_;
  snapshot.token_counts = token_counts_;
  return snapshot;
}

}  // namespace millrace::sched
