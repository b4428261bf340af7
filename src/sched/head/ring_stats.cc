#include "sched/head/ring_stats.h"

#include <algorithm>
#include <utility>

#include "sched/head/bubbles.h"

namespace millrace::sched {
namespace {

/// Plans whose reports are still on the way number about two windows; more means that reports are lost.
constexpr size_t kMaxPending = 4096;
constexpr int64_t kSecondNs = 1'000'000'000;

/// Links after the first also carry activations.
uint64_t messages_per_plan(size_t link) {
  return link == 0 ? 1 : 2;
}

}  // namespace

double StageTotals::bubble_ratio() const {
  const int64_t waited = wait.bubble_ns();
  return waited == 0 ? 0.0 : static_cast<double>(waited) / static_cast<double>(waited + busy_ns);
}

RingTotals& RingTotals::operator+=(const RingTotals& other) {
  plans += other.plans;
  prefill_tokens += other.prefill_tokens;
  decode_tokens += other.decode_tokens;
  schedule_ns += other.schedule_ns;
  book_ns += other.book_ns;
  in_use_ns += other.in_use_ns;
  occupied_ns += other.occupied_ns;
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s].busy_ns += other.stages[s].busy_ns;
    stages[s].wait += other.stages[s].wait;
  }
  for (size_t i = 0; i < links.size(); ++i) {
    links[i].messages += other.links[i].messages;
    links[i].bytes += other.links[i].bytes;
    links[i].timed += other.links[i].timed;
    links[i].latency_ns += other.links[i].latency_ns;
  }
  return *this;
}

double RingTotals::occupancy() const {
  return in_use_ns == 0 ? 0.0 : static_cast<double>(occupied_ns) / static_cast<double>(in_use_ns);
}

RingStats::RingStats(size_t stage_count, size_t window)
    : stage_count_(std::max<size_t>(stage_count, 1)),
      window_(window),
      clocks_(stage_count_),
      since_start_(stage_count_),
      profile_(stage_count_),
      occupancy_ns_(window + 1) {
  for (Bucket& bucket : buckets_) bucket.totals = RingTotals(stage_count_);
}

void RingStats::ring_attached(RingEpoch epoch, int64_t now_ns) {
  epoch_ = epoch;
  clocks_ = ClockOffsets(stage_count_);
  transit_ = {};
  pending_.clear();
  previous_.reset();
  starved_ = false;
  output_arrived_ = false;
  const std::lock_guard lock(mutex_);
  if (epochs_++ == 0) attached_ns_ = in_flight_since_ = now_ns;
}

void RingStats::ring_broken(int64_t now_ns) {
  pending_.clear();
  previous_.reset();
  set_in_flight(0, now_ns, false);
}

void RingStats::request_arrived(int64_t at_ns) {
  last_request_ns_ = at_ns;
  output_arrived_ = false;
}

void RingStats::plan_sent(const Plan& plan, const PlanSent& sent) {
  if (pending_.size() >= kMaxPending) pending_.pop_front();
  Pending& pending = pending_.emplace_back();
  pending.plan_bytes = sent.bytes;
  pending.profile = sent.profile;
  PlanRecord& record = pending.record;
  record.plan = plan.id;
  record.sent_ns = sent.sent_ns;
  if (plan.slices.empty()) return;
  pending.reports.resize(stage_count_);
  record.epoch = epoch_;
  record.stages.resize(stage_count_);
  record.after_pause = in_flight_ == 0 && !output_arrived_;
  record.starved = std::exchange(starved_, false);
  record.ready_ns = output_arrived_ ? last_output_sent_ns_ : last_request_ns_;
  record.schedule_ns = sent.schedule_ns;
  record.sequences = static_cast<uint32_t>(plan.slices.size());
  for (const PlanSlice& slice : plan.slices) {
    (slice.decodes() && slice.sample ? record.decode_rows : record.prefill_rows) += slice.token_count;
  }
  record.running = sent.running;
  record.waiting = sent.waiting;
  record.free_pages = sent.free_pages;
  record.in_flight = in_flight_ + 1;
  set_in_flight(in_flight_ + 1, sent.sent_ns, sent.profile);
}

RingStats::Pending* RingStats::find(PlanId plan) {
  if (pending_.empty() || plan < pending_.front().record.plan || plan > pending_.back().record.plan) return nullptr;
  return &pending_[plan.value() - pending_.front().record.plan.value()];
}

void RingStats::add_report(const StageReport& report) {
  Pending* pending = find(report.plan);
  const size_t stage = report.stage.value();
  if (pending == nullptr || stage >= pending->reports.size() || pending->record.stages[stage].known) return;
  pending->reports[stage] = report;
  pending->record.stages[stage].known = true;
  ++pending->report_count;
}

void RingStats::output_booked(const PlanOutput& output, uint64_t bytes, int64_t arrived_ns, int64_t booked_ns) {
  for (const StageReport& report : output.reports) add_report(report);
  if (Pending* pending = find(output.id)) {
    pending->record.output_ns = arrived_ns;
    pending->record.booked_ns = booked_ns;
    pending->has_output = true;
    count_output(*pending, output, bytes);
    if (pending->record.sequences > 0) {
      const size_t last = stage_count_ - 1;
      const bool reported = pending->record.stages[last].known;
      last_output_sent_ns_ = reported ? pending->reports[last].end_ns - clocks_.offset_ns(last) : arrived_ns;
      output_arrived_ = true;
      set_in_flight(in_flight_ - 1, arrived_ns, pending->profile);
    }
  }
  while (!pending_.empty() && pending_.front().complete()) {
    if (pending_.front().record.sequences > 0) complete(pending_.front(), booked_ns);
    pending_.pop_front();
  }
}

void RingStats::complete(Pending& pending, int64_t now_ns) {
  PlanRecord& record = pending.record;
  clocks_.observe(record.sent_ns, pending.reports, record.output_ns);
  transit_.observe(record.sent_ns, pending.reports, record.output_ns);
  set_spans(pending);
  if (previous_) attribute_waits(*previous_, record);
  previous_ = record;
  count_stages(pending, now_ns);
  const std::lock_guard lock(mutex_);
  record.number = next_number_++;
  if (records_.size() >= kMaxRecords) records_.pop_front();
  records_.push_back(std::move(record));
}

void RingStats::set_spans(Pending& pending) const {
  for (size_t s = 0; s < stage_count_; ++s) {
    const StageReport& report = pending.reports[s];
    const int64_t offset = clocks_.offset_ns(s);
    StageSpan& span = pending.record.stages[s];
    span.plan_ns = report.plan_ns - offset;
    span.input_ns = report.input_ns - offset;
    span.begin_ns = report.begin_ns - offset;
    span.end_ns = report.end_ns - offset;
    span.sent_bytes = report.sent_bytes;
  }
}

void RingStats::count_output(const Pending& pending, const PlanOutput& output, uint64_t output_bytes) {
  const PlanRecord& record = pending.record;
  RingTotals found(stage_count_);
  if (record.sequences > 0) {
    found.plans = 1;
    found.prefill_tokens = record.prefill_rows;
    found.decode_tokens = record.decode_rows;
    found.schedule_ns = record.sent_ns - record.schedule_ns;
    found.book_ns = record.booked_ns - record.output_ns;
  }
  // A plan grows by the reports that the stages on its way put into it.
  uint64_t plan_bytes = pending.plan_bytes;
  for (size_t link = 0; link < stage_count_; ++link) {
    found.links[link].messages = 1;
    found.links[link].bytes = plan_bytes;
    const auto reported = std::ranges::count(output.reports, StageId(static_cast<uint32_t>(link)), &StageReport::stage);
    plan_bytes += static_cast<uint64_t>(reported) * StageReport::kWireBytes;
  }
  found.links.back() = {1, output_bytes, 0, 0};

  const std::lock_guard lock(mutex_);
  add(found, pending.profile, record.booked_ns);
  if (record.sequences == 0 || pending.profile) return;
  const double latency_s = static_cast<double>(record.output_ns - record.sent_ns) * 1e-9;
  const auto place = std::ranges::lower_bound(kRingLatencyBounds, latency_s) - kRingLatencyBounds.begin();
  ++latency_counts_[static_cast<size_t>(place)];
  latency_sum_ns_ += record.output_ns - record.sent_ns;
  const uint64_t tokens = found.prefill_tokens + found.decode_tokens;
  ++token_counts_[static_cast<size_t>(std::ranges::lower_bound(kTokenCountBounds, tokens) - kTokenCountBounds.begin())];
}

void RingStats::count_stages(const Pending& pending, int64_t now_ns) {
  const PlanRecord& record = pending.record;
  RingTotals found(stage_count_);
  int64_t left_ns = record.sent_ns;
  for (size_t s = 0; s < stage_count_; ++s) {
    const StageSpan& span = record.stages[s];
    found.stages[s] = {span.end_ns - span.begin_ns, span.wait};
    const uint64_t activations = s == 0 ? 0 : record.stages[s - 1].sent_bytes;
    found.links[s] = {messages_per_plan(s) - 1, activations, 1, std::max<int64_t>(span.input_ns - left_ns, 0)};
    left_ns = span.end_ns;
  }
  found.links.back() = {0, 0, 1, std::max<int64_t>(record.output_ns - left_ns, 0)};
  const std::lock_guard lock(mutex_);
  add(found, pending.profile, now_ns);
}

void RingStats::add(const RingTotals& found, bool profile, int64_t now_ns) {
  if (profile) {
    profile_ += found;
    return;
  }
  since_start_ += found;
  bucket(now_ns) += found;
}

void RingStats::set_in_flight(uint32_t in_flight, int64_t now_ns, bool profile) {
  const int64_t passed = now_ns - std::exchange(in_flight_since_, now_ns);
  const std::lock_guard lock(mutex_);
  if (epochs_ > 0 && !profile && in_flight_ < occupancy_ns_.size()) occupancy_ns_[in_flight_] += passed;
  if (in_flight_ > 0 && !profile) {
    for (RingTotals* totals : {&since_start_, &bucket(now_ns)}) {
      totals->in_use_ns += passed;
      totals->occupied_ns += passed * in_flight_;
    }
  }
  in_flight_ = in_flight;
}

RingTotals& RingStats::bucket(int64_t now_ns) {
  const int64_t second = now_ns / kSecondNs;
  Bucket& found = buckets_[static_cast<size_t>(second) % buckets_.size()];
  if (found.second != second) found = {second, RingTotals(stage_count_)};
  return found.totals;
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
  RingSnapshot snapshot;
  snapshot.stage_count = stage_count_;
  snapshot.window = window_;
  snapshot.recent = RingTotals(stage_count_);
  const auto covered = static_cast<int64_t>(buckets_.size()) - 1;
  const int64_t oldest = now_ns / kSecondNs - covered;
  const std::lock_guard lock(mutex_);
  snapshot.in_flight = in_flight_;
  snapshot.epochs = epochs_;
  snapshot.since_start = since_start_;
  snapshot.profile = profile_;
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

std::vector<PlanRecord> RingStats::records_after(uint64_t after, size_t limit) const {
  const std::lock_guard lock(mutex_);
  const uint64_t newest = next_number_ - 1;
  const uint64_t wanted = after >= newest ? 0 : std::min<uint64_t>({newest - after, limit, records_.size()});
  return {records_.end() - static_cast<std::ptrdiff_t>(wanted), records_.end()};
}

}  // namespace millrace::sched
