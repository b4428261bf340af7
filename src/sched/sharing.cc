#include "sched/sharing.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace millrace::sched {

Sharing::Sharing(size_t stage_count, size_t window, uint32_t processors, uint32_t threads)
    : window_(window), processors_per_run_(static_cast<double>(processors) / threads), stages_(stage_count) {
  CHECK(stage_count > 0 && window > 0 && processors > 0 && threads > 0);
}

std::vector<Sharing::Alone> Sharing::add(const Run& run) {
  Stage& own = stages_.at(run.stage.value());
  own.runs.push_back(run);
  own.next_plan = run.plan + 1;
  uint64_t known = std::numeric_limits<uint64_t>::max();
  for (const Stage& stage : stages_) known = std::min(known, stage.next_plan);
  std::vector<Alone> settled;
  for (Stage& stage : stages_) {
    for (; stage.settled < stage.runs.size(); ++stage.settled) {
      const Run& next = stage.runs[stage.settled];
      // The plan a window later was made when this one had come back.
      if (next.plan + window_ > known) break;
      if (next.shape) settled.push_back({next.stage, *next.shape, alone_us(next)});
    }
  }
  forget_settled();
  return settled;
}

double Sharing::alone_us(const Run& run) const {
  std::vector<std::pair<int64_t, int>> changes;  // when so many runs more go on beside it
  for (const Stage& stage : stages_) {
    for (const Run& other : stage.runs) {
      if (&stage == &stages_[run.stage.value()] || other.end_ns <= run.begin_ns) continue;
      if (other.begin_ns >= run.end_ns) break;
      changes.emplace_back(std::max(other.begin_ns, run.begin_ns), 1);
      changes.emplace_back(std::min(other.end_ns, run.end_ns), -1);
    }
  }
  changes.emplace_back(run.end_ns, 0);
  std::ranges::sort(changes);
  double work_ns = 0;
  int running = 1;
  int64_t since = run.begin_ns;
  for (const auto& [at, change] : changes) {
    work_ns += static_cast<double>(at - since) * std::min(1.0, processors_per_run_ / running);
    since = at;
    running += change;
  }
  return work_ns * 1e-3;
}

void Sharing::forget_settled() {
  uint64_t oldest = std::numeric_limits<uint64_t>::max();
  for (const Stage& stage : stages_) {
    oldest = std::min(oldest, stage.settled < stage.runs.size() ? stage.runs[stage.settled].plan : stage.next_plan);
  }
  for (Stage& stage : stages_) {
    for (; stage.settled > 0 && stage.runs.front().plan + window_ <= oldest; --stage.settled) stage.runs.pop_front();
  }
}

}  // namespace millrace::sched
