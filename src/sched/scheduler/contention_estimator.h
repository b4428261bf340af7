#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "sched/scheduler/cost_model.h"
#include "sched/scheduler/shared_machine.h"

namespace millrace::sched {

/// Estimates what the runs of stages on one machine would have taken alone. That is the integral, over a run's time, of
/// its speed with the runs of other stages at that time (docs/scheduling.md). The simulator slows stages down by the
/// same rule. Plain data of CostTracker and ContentionProfiler.
class ContentionEstimator {
 public:
  /// One stage's run of one plan.
  struct Run {
    StageId stage;
    uint64_t plan = 0;
    std::optional<BatchShape> shape;  ///< none: it slows others down, but is not estimated itself
    int64_t begin_ns = 0;             ///< on a clock that all stages share
    int64_t end_ns = 0;
    double prompt_share = 0;  ///< share of prompt tokens in its time
  };
  /// The time that a run would take without its neighbours, the runs of other stages at the same time.
  struct IsolatedRun {
    StageId stage;
    uint64_t plan = 0;
    BatchShape shape;
    double run_us = 0;
    double prompt_share = 0;
    double processor_us = 0;  ///< its time on the processors that it wants, with contention
    /// Average number of neighbours over that time by kind of work, each divided by the run's slowdown at the moment.
    /// The difference processor_us − run_us is the sum over the kinds of contention · overlap · processor_us.
    double prompt_overlap = 0;
    double other_overlap = 0;
  };

  /// Takes the largest number of plans in flight as `window`.
  ContentionEstimator(size_t stage_count, size_t window, const SharedMachine& machine);

  /// Adds a run; each stage's runs come in the order of their plans. Returns the runs whose neighbours are all known
  /// now, which are runs of plans in flight at the same time.
  [[nodiscard]] std::vector<IsolatedRun> add(const Run& run);
  /// Returns all other runs, since no more will come.
  [[nodiscard]] std::vector<IsolatedRun> finish();

 private:
  struct Stage {
    std::deque<Run> runs;    // runs that may be neighbours of one that is not settled
    size_t settled = 0;      // runs at the front whose neighbours are all known
    uint64_t next_plan = 0;  // runs of all plans before it are known
  };
  void settle(uint64_t known, std::vector<IsolatedRun>& settled);
  [[nodiscard]] IsolatedRun isolate(const Run& run) const;
  void forget_settled();

  size_t window_;
  SharedMachine machine_;
  std::vector<Stage> stages_;
};

}  // namespace millrace::sched
