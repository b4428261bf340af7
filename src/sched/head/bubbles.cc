#include "sched/head/bubbles.h"

#include <algorithm>

namespace millrace::sched {
namespace {

/// Splits a stretch of time from its begin to its end into pieces with one cause each.
class WaitSplitter {
 public:
  WaitSplitter(int64_t begin_ns, int64_t end_ns, WaitTimes& into)
      : at_(begin_ns), end_(std::max(begin_ns, end_ns)), into_(into) {}

  /// Takes the time before `until_ns` that has not been taken yet.
  int64_t take(int64_t until_ns) {
    const int64_t until = std::clamp(until_ns, at_, end_);
    const int64_t length = until - at_;
    at_ = until;
    return length;
  }
  void assign(int64_t until_ns, WaitCause cause) { into_[cause] += take(until_ns); }
  void assign_rest(WaitCause cause) { assign(end_, cause); }

 private:
  int64_t at_;
  const int64_t end_;
  WaitTimes& into_;
};

void attribute_pause(const PlanRecord& previous, const PlanRecord& record, WaitSplitter& wait) {
  wait.assign(previous.output_ns, WaitCause::kFillDrain);
  wait.assign(record.ready_ns, WaitCause::kIdle);
  wait.assign(record.sent_ns, WaitCause::kHeadLate);
  wait.assign_rest(WaitCause::kFillDrain);
}

/// Returns when a stage with two output buffers may run again: the next stage must be done with the plan before the
/// previous one. Stages with more buffers seldom wait for them.
int64_t buffer_free_ns(const PlanRecord& previous, size_t stage) {
  return stage + 1 < previous.stages.size() ? previous.stages[stage + 1].free_ns : 0;
}

void attribute_first_stage(const PlanRecord& record, WaitSplitter& wait) {
  wait.assign(record.ready_ns, record.starved ? WaitCause::kNothingToDo : WaitCause::kUneven);
  wait.assign(record.stages.front().plan_ns, WaitCause::kHeadLate);
}

/// Adds `part_ns`, divided into causes in the proportions of `whole`.
void add_share(const WaitTimes& whole, int64_t part_ns, WaitTimes& into) {
  const int64_t whole_ns = whole.total_ns();
  int64_t whole_left = whole_ns;
  int64_t part_left = part_ns;
  for (size_t i = 0; i < kWaitCauseCount; ++i) {
    const auto cause = static_cast<WaitCause>(i);
    whole_left -= whole[cause];
    const int64_t rest = whole_ns == 0
                             ? 0
                             : static_cast<int64_t>(static_cast<double>(part_ns) * static_cast<double>(whole_left) /
                                                    static_cast<double>(whole_ns));
    into[cause] += part_left - rest;
    part_left = rest;
  }
}

void attribute_later_stage(const StageSpan& upstream, const StageSpan& span, WaitSplitter& wait, WaitTimes& into) {
  const int64_t upstream_busy = wait.take(upstream.end_ns);
  const int64_t inherited = std::min(upstream_busy, upstream.wait.total_ns());
  add_share(upstream.wait, inherited, into);
  into[WaitCause::kUneven] += upstream_busy - inherited;
  wait.assign(std::max(span.input_ns, span.plan_ns), WaitCause::kLateActivations);
}

}  // namespace

void attribute_waits(const PlanRecord& previous, PlanRecord& record) {
  for (size_t s = 0; s < record.stages.size(); ++s) {
    StageSpan& span = record.stages[s];
    span.wait = {};
    span.free_ns = span.begin_ns;
    if (!span.known || s >= previous.stages.size() || !previous.stages[s].known) continue;
    span.free_ns = previous.stages[s].end_ns;
    WaitSplitter wait(previous.stages[s].end_ns, span.begin_ns, span.wait);
    if (record.after_pause) {
      attribute_pause(previous, record, wait);
      continue;
    }
    if (s == 0) {
      attribute_first_stage(record, wait);
    } else {
      attribute_later_stage(record.stages[s - 1], span, wait, span.wait);
    }
    wait.assign(buffer_free_ns(previous, s), WaitCause::kUneven);
    wait.assign_rest(WaitCause::kOverhead);
  }
}

}  // namespace millrace::sched
