#include "sched/bubbles.h"

#include <algorithm>

namespace millrace::sched {
namespace {

/// Cuts a stretch of time into pieces from its begin to its end; every piece has one cause.
class Cutter {
 public:
  Cutter(int64_t begin_ns, int64_t end_ns, WaitTimes& into)
      : at_(begin_ns), end_(std::max(begin_ns, end_ns)), into_(into) {}

  /// What lies before `until_ns` and is not cut off yet.
  int64_t take(int64_t until_ns) {
    const int64_t until = std::clamp(until_ns, at_, end_);
    const int64_t length = until - at_;
    at_ = until;
    return length;
  }
  void give(int64_t until_ns, WaitCause cause) { into_[cause] += take(until_ns); }
  void give_rest(WaitCause cause) { give(end_, cause); }

 private:
  int64_t at_;
  const int64_t end_;
  WaitTimes& into_;
};

void explain_pause(const PlanRecord& previous, const PlanRecord& record, Cutter& wait) {
  wait.give(previous.output_ns, WaitCause::kFillDrain);
  wait.give(record.ready_ns, WaitCause::kIdle);
  wait.give(record.sent_ns, WaitCause::kHeadLate);
  wait.give_rest(WaitCause::kFillDrain);
}

/// Of a stage with two output buffers: before it runs a plan, the next stage must be done with the last but one. One
/// with
/// more seldom waits for them.
int64_t buffer_free_ns(const PlanRecord& previous, size_t stage) {
  return stage + 1 < previous.stages.size() ? previous.stages[stage + 1].free_ns : 0;
}

void explain_first_stage(const PlanRecord& record, Cutter& wait) {
  wait.give(record.ready_ns, record.starved ? WaitCause::kNothingToDo : WaitCause::kUneven);
  wait.give(record.stages.front().plan_ns, WaitCause::kHeadLate);
}

/// Adds `part_ns` of `whole`, divided as that is.
void add_share(const WaitTimes& whole, int64_t part_ns, WaitTimes& into) {
  const int64_t whole_ns = whole.total_ns();
  int64_t whole_left = whole_ns;
  int64_t part_left = part_ns;
  for (size_t i = 0; i < kWaitCauseCount; ++i) {
    const auto cause = static_cast<WaitCause>(i);
    whole_left -= whole[cause];
    const int64_t rest = whole_ns == 0 ? 0
                                       : static_cast<int64_t>(static_cast<double>(part_ns) *
                                                              static_cast<double>(whole_left) /
                                                              static_cast<double>(whole_ns));
    into[cause] += part_left - rest;
    part_left = rest;
  }
}

void explain_later_stage(const StageSpan& upstream, const StageSpan& span, Cutter& wait, WaitTimes& into) {
  const int64_t upstream_busy = wait.take(upstream.end_ns);
  const int64_t inherited = std::min(upstream_busy, upstream.wait.total_ns());
  add_share(upstream.wait, inherited, into);
  into[WaitCause::kUneven] += upstream_busy - inherited;
  wait.give(std::max(span.input_ns, span.plan_ns), WaitCause::kLateActivations);
}

}  // namespace

void explain_waits(const PlanRecord& previous, PlanRecord& record) {
  for (size_t s = 0; s < record.stages.size(); ++s) {
    StageSpan& span = record.stages[s];
    span.wait = {};
    span.free_ns = span.begin_ns;
    if (!span.known || s >= previous.stages.size() || !previous.stages[s].known) continue;
    span.free_ns = previous.stages[s].end_ns;
    Cutter wait(previous.stages[s].end_ns, span.begin_ns, span.wait);
    if (record.after_pause) {
      explain_pause(previous, record, wait);
      continue;
    }
    if (s == 0) {
      explain_first_stage(record, wait);
    } else {
      explain_later_stage(record.stages[s - 1], span, wait, span.wait);
    }
    wait.give(buffer_free_ns(previous, s), WaitCause::kUneven);
    wait.give_rest(WaitCause::kOverhead);
  }
}

}  // namespace millrace::sched
