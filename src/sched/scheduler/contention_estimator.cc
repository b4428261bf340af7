#include "sched/scheduler/contention_estimator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace millrace::sched {
namespace {

/// A change in a run's neighbours: their number and the sum of their prompt shares.
struct Change {
  int64_t at_ns = 0;
  int runs = 0;
  double prompt_share = 0;
};

}  // namespace

ContentionEstimator::ContentionEstimator(size_t stage_count, size_t window, const SharedMachine& machine)
    : window_(window), machine_(machine), stages_(stage_count) {
  CHECK(stage_count > 0 && window > 0 && machine.processors > 0 && machine.threads > 0);
}

std::vector<ContentionEstimator::IsolatedRun> ContentionEstimator::add(const Run& run) {
  Stage& own = stages_.at(run.stage.value());
  own.runs.push_back(run);
  own.next_plan = run.plan + 1;
  uint64_t known = std::numeric_limits<uint64_t>::max();
  for (const Stage& stage : stages_) known = std::min(known, stage.next_plan);
  std::vector<IsolatedRun> settled;
  settle(known, settled);
  forget_settled();
  return settled;
}

std::vector<ContentionEstimator::IsolatedRun> ContentionEstimator::finish() {
  std::vector<IsolatedRun> settled;
  settle(std::numeric_limits<uint64_t>::max(), settled);
  forget_settled();
  return settled;
}

void ContentionEstimator::settle(uint64_t known, std::vector<IsolatedRun>& settled) {
  for (Stage& stage : stages_) {
    for (; stage.settled < stage.runs.size(); ++stage.settled) {
      const Run& next = stage.runs[stage.settled];
      // The plan one window later was made after this one had come back, so that it is no neighbour.
      if (next.plan + window_ > known) break;
      if (next.shape) settled.push_back(isolate(next));
    }
  }
}

ContentionEstimator::IsolatedRun ContentionEstimator::isolate(const Run& run) const {
  std::vector<Change> changes;
  for (const Stage& stage : stages_) {
    for (const Run& other : stage.runs) {
      if (&stage == &stages_[run.stage.value()] || other.end_ns <= run.begin_ns) continue;
      if (other.begin_ns >= run.end_ns) break;
      changes.push_back({std::max(other.begin_ns, run.begin_ns), 1, other.prompt_share});
      changes.push_back({std::min(other.end_ns, run.end_ns), -1, -other.prompt_share});
    }
  }
  changes.push_back({.at_ns = run.end_ns});
  std::ranges::sort(changes, {}, [](const Change& change) { return std::pair(change.at_ns, -change.runs); });
  IsolatedRun found{
      .stage = run.stage, .plan = run.plan, .shape = *run.shape, .run_us = 0, .prompt_share = run.prompt_share};
  int running = 1;
  double prompt_shares = 0;
  int64_t since = run.begin_ns;
  for (const Change& change : changes) {
    const auto count = static_cast<size_t>(running);
    const double us = 1e-3 * static_cast<double>(change.at_ns - since) * machine_.processor_share(count);
    const double part = machine_.overlap_share(count);
    const double prompts = part * prompt_shares;
    const double others = part * (running - 1) - prompts;
    const double alone_us = us / machine_.contention.slowdown(run.prompt_share, prompts + others, prompts);
    found.processor_us += us;
    found.run_us += alone_us;
    found.prompt_overlap += prompts * alone_us;
    found.other_overlap += others * alone_us;
    since = change.at_ns;
    running += change.runs;
    prompt_shares += change.prompt_share;
  }
  if (found.processor_us > 0) {
    found.prompt_overlap /= found.processor_us;
    found.other_overlap /= found.processor_us;
  }
  return found;
}

void ContentionEstimator::forget_settled() {
  uint64_t oldest = std::numeric_limits<uint64_t>::max();
  for (const Stage& stage : stages_) {
    oldest = std::min(oldest, stage.settled < stage.runs.size() ? stage.runs[stage.settled].plan : stage.next_plan);
  }
  for (Stage& stage : stages_) {
    for (; stage.settled > 0 && stage.runs.front().plan + window_ <= oldest; --stage.settled) stage.runs.pop_front();
  }
}

}  // namespace millrace::sched
