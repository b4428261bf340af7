#include "sched/head/plan_recorder.h"

#include <utility>

#include "sched/head/bubbles.h"
#include "sched/plan/plan.h"
#include "sched/plan/plan_output.h"

namespace millrace::sched {
namespace {

/// Plans whose reports are still on the way number about two windows; more means that reports are lost.
constexpr size_t kMaxOpenRecords = 4096;

}  // namespace

PlanRecorder::PlanRecorder(size_t stage_count, size_t rank_count)
    : stage_count_(stage_count), rank_count_(rank_count), clocks_(stage_count) {}

void PlanRecorder::ring_attached(RingEpoch epoch) {
  epoch_ = epoch;
  clocks_ = ClockOffsets(stage_count_);
  transit_ = {};
  open_.clear();
  previous_.reset();
  starved_ = false;
  output_arrived_ = false;
}

void PlanRecorder::ring_broken() {
  open_.clear();
  previous_.reset();
  in_flight_ = 0;
}

void PlanRecorder::request_arrived(int64_t at_ns) {
  last_request_ns_ = at_ns;
  output_arrived_ = false;
}

void PlanRecorder::plan_sent(const Plan& plan, const PlanSent& sent) {
  if (open_.size() >= kMaxOpenRecords) open_.pop_front();
  OpenRecord& open = open_.emplace_back();
  open.plan_bytes = sent.bytes;
  open.profile = sent.profile;
  open.is_step = plan.step > 0;
  PlanRecord& record = open.record;
  record.plan = plan.id;
  record.sent_ns = sent.sent_ns;
  if (plan.slices.empty()) return;
  open.reports.resize(stage_count_);
  open.rank_count = rank_count_;
  record.epoch = epoch_;
  record.stages.resize(stage_count_, StageSpan{.ranks = std::vector<RankSpan>(rank_count_ - 1)});
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
  record.in_flight = ++in_flight_;
}

OpenRecord* PlanRecorder::find(PlanId plan) {
  if (open_.empty() || plan < open_.front().record.plan || plan > open_.back().record.plan) return nullptr;
  return &open_[plan.value() - open_.front().record.plan.value()];
}

void PlanRecorder::add_report(const StageReport& report) {
  OpenRecord* open = find(report.plan);
  const size_t stage = report.stage.value();
  if (open == nullptr || stage >= open->reports.size() || report.rank >= rank_count_) return;
  StageSpan& span = open->record.stages[stage];
  bool& known = report.rank == 0 ? span.known : span.ranks[report.rank - 1].known;
  if (std::exchange(known, true)) return;
  ++open->report_count;
  if (report.rank == 0) {
    open->reports[stage] = report;
  } else {
    span.ranks[report.rank - 1] = {.known = true, .begin_ns = report.begin_ns, .end_ns = report.end_ns};
  }
}

const OpenRecord* PlanRecorder::output_booked(const PlanOutput& output, int64_t arrived_ns, int64_t booked_ns) {
  for (const StageReport& report : output.reports) add_report(report);
  OpenRecord* open = find(output.id);
  if (open == nullptr) return nullptr;
  open->record.output_ns = arrived_ns;
  open->record.booked_ns = booked_ns;
  open->has_output = true;
  if (open->record.sequences > 0) {
    const size_t last = stage_count_ - 1;
    const bool reported = open->record.stages[last].known;
    last_output_sent_ns_ = reported ? open->reports[last].end_ns - clocks_.offset_ns(last) : arrived_ns;
    output_arrived_ = true;
    --in_flight_;
  }
  return open;
}

std::optional<OpenRecord> PlanRecorder::take_complete() {
  while (!open_.empty() && open_.front().complete()) {
    OpenRecord complete = std::move(open_.front());
    open_.pop_front();
    if (complete.record.sequences == 0) continue;
    PlanRecord& record = complete.record;
    clocks_.observe(record.sent_ns, complete.reports, record.output_ns);
    transit_.observe(record.sent_ns, complete.reports, record.output_ns);
    set_spans(complete);
    if (previous_) attribute_waits(*previous_, record);
    previous_ = record;
    return complete;
  }
  return std::nullopt;
}

void PlanRecorder::set_spans(OpenRecord& open) const {
  for (size_t s = 0; s < stage_count_; ++s) {
    const StageReport& report = open.reports[s];
    const int64_t offset = clocks_.offset_ns(s);
    StageSpan& span = open.record.stages[s];
    span.plan_ns = report.plan_ns - offset;
    span.input_ns = report.input_ns - offset;
    span.begin_ns = report.begin_ns - offset;
    span.end_ns = report.end_ns - offset;
    span.sent_bytes = report.sent_bytes;
    for (RankSpan& rank : span.ranks) {
      rank.begin_ns -= offset;
      rank.end_ns -= offset;
    }
  }
}

}  // namespace millrace::sched
