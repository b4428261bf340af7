#include "app/trace_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iterator>

#include "base/text_file.h"
#include "sched/head/bubbles.h"

namespace millrace::app {
namespace {

using sched::PlanRecord;
using sched::StageSpan;
using sched::WaitCause;

constexpr std::array<std::string_view, sched::kWaitCauseCount> kCauseLabels = {
    "  uneven micro-batches", "  late activations",    "  head late",     "  nothing to do",
    "  fill and drain",       "  own loop, or no CPU", "idle: no request"};

/// Sums up one epoch: its records in order.
class EpochSummary {
 public:
  EpochSummary(std::vector<PlanRecord>::iterator begin, std::vector<PlanRecord>::iterator end, TraceSummary& into)
      : begin_(begin), end_(end), into_(into) {}

  void add() {
    const int64_t span_begin = begin_->sent_ns;
    const int64_t span_end = std::prev(end_)->output_ns;
    into_.span_ns += span_end - span_begin;
    ++into_.epoch_count;
    for (auto at = begin_ + 1; at != end_; ++at) sched::attribute_waits(*(at - 1), *at);
    for (size_t s = 0; s < into_.stages.size(); ++s) add_stage(s, span_begin, span_end);
  }

 private:
  void add_stage(size_t s, int64_t span_begin, int64_t span_end) {
    TraceSummary::Stage& stage = into_.stages[s];
    TraceSummary::Stage found;
    // Before a stage's first plan the ring fills, after its last one it drains.
    add_bubble(s, *begin_, span_begin, begin_->stages[s].begin_ns - span_begin, found);
    for (auto at = begin_; at != end_; ++at) {
      const StageSpan& span = at->stages[s];
      found.busy_ns += span.end_ns - span.begin_ns;
      found.wait += span.wait;
      if (at == begin_ || span.wait.bubble_ns() == 0) continue;
      into_.longest.push_back({s, at->epoch, at->plan, (at - 1)->stages[s].end_ns, span.wait});
    }
    const PlanRecord& last = *std::prev(end_);
    add_bubble(s, last, last.stages[s].end_ns, span_end - last.stages[s].end_ns, found);
    stage.busy_ns += found.busy_ns;
    stage.wait += found.wait;
    stage.unexplained_ns += span_end - span_begin - found.busy_ns - found.wait.total_ns();
  }

  void add_bubble(size_t s, const PlanRecord& record, int64_t begin_ns, int64_t length_ns, TraceSummary::Stage& found) {
    if (length_ns <= 0) return;
    sched::WaitTimes wait;
    wait[WaitCause::kFillDrain] = length_ns;
    found.wait += wait;
    into_.longest.push_back({s, record.epoch, record.plan, begin_ns, wait});
  }

  const std::vector<PlanRecord>::iterator begin_;
  const std::vector<PlanRecord>::iterator end_;
  TraceSummary& into_;
};

double length_variation(const std::vector<PlanRecord>& records, size_t stage_count) {
  int64_t difference_ns = 0;
  int64_t length_ns = 0;
  for (size_t i = 1; i < records.size(); ++i) {
    for (size_t s = 0; s < stage_count; ++s) {
      const auto length = [&](size_t at) { return records[at].stages[s].end_ns - records[at].stages[s].begin_ns; };
      difference_ns += std::abs(length(i) - length(i - 1));
      length_ns += length(i);
    }
  }
  return length_ns == 0 ? 0.0 : static_cast<double>(difference_ns) / static_cast<double>(length_ns);
}

std::string duration(int64_t ns) {
  if (ns >= 1'000'000'000) return fmt::format("{:.2f} s", static_cast<double>(ns) * 1e-9);
  if (ns >= 1'000'000) return fmt::format("{:.2f} ms", static_cast<double>(ns) * 1e-6);
  return fmt::format("{:.1f} µs", static_cast<double>(ns) * 1e-3);
}

void append_row(std::string& out, std::string_view label, const TraceSummary& summary,
                const std::function<int64_t(const TraceSummary::Stage&)>& value) {
  fmt::format_to(std::back_inserter(out), "{:24}", label);
  const auto percent = [](int64_t part, int64_t whole) {
    return fmt::format("{:.1f} %", whole == 0 ? 0.0 : 100 * static_cast<double>(part) / static_cast<double>(whole));
  };
  int64_t sum = 0;
  for (const TraceSummary::Stage& stage : summary.stages) {
    sum += value(stage);
    fmt::format_to(std::back_inserter(out), "{:>10}", percent(value(stage), summary.span_ns));
  }
  fmt::format_to(std::back_inserter(out), "{:>10}\n",
                 percent(sum, summary.span_ns * static_cast<int64_t>(summary.stages.size())));
}

void append_table(std::string& out, const TraceSummary& summary) {
  fmt::format_to(std::back_inserter(out), "{:24}", "");
  for (size_t s = 0; s < summary.stages.size(); ++s) {
    fmt::format_to(std::back_inserter(out), "{:>10}", fmt::format("stage {}", s));
  }
  fmt::format_to(std::back_inserter(out), "{:>10}\n", "all");
  using Stage = TraceSummary::Stage;
  append_row(out, "busy", summary, [](const Stage& stage) { return stage.busy_ns; });
  append_row(out, "bubble", summary, [](const Stage& stage) { return stage.wait.bubble_ns(); });
  for (size_t i = 0; i < sched::kWaitCauseCount; ++i) {
    append_row(out, kCauseLabels[i], summary,
               [i](const Stage& stage) { return stage.wait[static_cast<WaitCause>(i)]; });
  }
  if (std::ranges::any_of(summary.stages, [](const Stage& stage) { return stage.unexplained_ns != 0; })) {
    append_row(out, "error of the clocks", summary, [](const Stage& stage) { return stage.unexplained_ns; });
  }
  append_row(out, "sum", summary,
             [](const Stage& stage) { return stage.busy_ns + stage.wait.total_ns() + stage.unexplained_ns; });
}

void append_longest(std::string& out, const TraceSummary& summary, int64_t origin_ns) {
  if (summary.longest.empty()) return;
  fmt::format_to(std::back_inserter(out), "\nlongest bubbles\n{:>12}{:>8}{:>6}{:>10}{:>12}  {}\n", "at", "stage",
                 "gen.", "plan", "length", "causes");
  for (const Bubble& bubble : summary.longest) {
    std::string causes;
    for (size_t i = 0; i < sched::kWaitCauseCount; ++i) {
      const int64_t ns = bubble.wait[static_cast<WaitCause>(i)];
      if (ns == 0) continue;
      if (!causes.empty()) causes += ", ";
      causes += fmt::format("{} {}", sched::kWaitCauseNames[i], duration(ns));
    }
    fmt::format_to(std::back_inserter(out), "{:>12}{:>8}{:>6}{:>10}{:>12}  {}\n", duration(bubble.begin_ns - origin_ns),
                   bubble.stage, bubble.epoch.value(), bubble.plan.value(), duration(bubble.wait.bubble_ns()), causes);
  }
}

}  // namespace

TraceSummary summarize(RecordedRing ring, size_t longest_count) {
  TraceSummary summary;
  summary.stages.resize(ring.stage_count);
  std::vector<PlanRecord>& records = ring.records;
  for (auto begin = records.begin(); begin != records.end();) {
    const auto end =
        std::find_if(begin, records.end(), [&](const PlanRecord& record) { return record.epoch != begin->epoch; });
    EpochSummary(begin, end, summary).add();
    begin = end;
  }
  for (const PlanRecord& record : records) {
    summary.prefill_tokens += record.prefill_rows;
    summary.decode_tokens += record.decode_rows;
    summary.occupancy += static_cast<double>(record.in_flight) / static_cast<double>(records.size());
    summary.head_ns += record.sent_ns - record.schedule_ns + record.booked_ns - record.output_ns;
  }
  summary.length_variation = length_variation(records, ring.stage_count);
  std::ranges::sort(summary.longest, std::greater<>(), [](const Bubble& bubble) { return bubble.wait.bubble_ns(); });
  summary.longest.resize(std::min(summary.longest.size(), longest_count));
  return summary;
}

std::string format_report(const RecordedRing& ring, const TraceSummary& summary) {
  std::string out;
  const auto print = [&](std::string_view line) { out += line; };
  const auto count = static_cast<int64_t>(ring.records.size());
  print(fmt::format("{} micro-batches ({} prefill and {} decode tokens) on {} stages in {}, {} epoch{}\n", count,
                    summary.prefill_tokens, summary.decode_tokens, ring.stage_count, duration(summary.span_ns),
                    summary.epoch_count, summary.epoch_count == 1 ? "" : "s"));
  if (!ring.complete) print("the file ends early: the profile was not stopped\n");
  if (ring.lost_plans > 0) print(fmt::format("{} micro-batches are missing: they came too fast\n", ring.lost_plans));
  if (count == 0) return out;
  print(fmt::format("window: {:.2f} of {} in flight; head: {} per micro-batch; ", summary.occupancy, ring.window,
                    duration(summary.head_ns / count)));
  print(fmt::format("lengths of neighbours differ by {:.0f} %\n\n", 100 * summary.length_variation));
  append_table(out, summary);
  append_longest(out, summary, ring.records.front().sent_ns);
  return out;
}

Result<std::string> report_trace(const std::filesystem::path& file) {
  auto content = read_text_file(file);
  if (content.has_error()) return content.error();
  auto ring = read_trace(std::move(*content));
  if (ring.has_error()) return make_error(ErrorCode::kData, "{}: {}", file.string(), ring.error().message);
  return format_report(*ring, summarize(*ring));
}

}  // namespace millrace::app
