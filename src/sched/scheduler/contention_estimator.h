#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "sched/scheduler/cost_model.h"
#include "sched/scheduler/shared_machine.h"

namespace millrace::sched {

/// What the runs of stages on one machine would have taken alone: the integral, over a run's time, of the rate at which
/// it went on beside those that ran then (docs/scheduling.md). The simulator slows stages down by the same rule. Plain
/// data.
class ContentionEstimator {
 public:
  struct Run {
    StageId stage;
    uint64_t plan = 0;
    std::optional<BatchShape> shape;  ///< none: others had it beside them, and there is nothing to learn from it
    int64_t begin_ns = 0;             ///< on a clock that all stages share
    int64_t end_ns = 0;
    double prompt_share = 0;  ///< of its work
  };
  struct IsolatedRun {
    StageId stage;
    uint64_t plan = 0;
    BatchShape shape;
    double run_us = 0;
    double prompt_share = 0;
    double processor_us = 0;  ///< its time with the processors that it wants: run_us and what neighbours took of it
    /// Neighbours on average over that time, by kind of work, each divided by the run's slowdown then:
    /// processor_us − run_us is the sum over the kinds of contention · beside · processor_us.
    double prompt_overlap = 0;
    double other_overlap = 0;
  };

  /// window: plans that can be in flight.
  ContentionEstimator(size_t stage_count, size_t window, const SharedMachine& machine);

  /// Each stage's runs come in the order of their plans. Returns those whose neighbours are all known by now: those of
  /// the plans that were in flight at the same time.
  [[nodiscard]] std::vector<IsolatedRun> add(const Run& run);
  /// All others, when no more runs come.
  [[nodiscard]] std::vector<IsolatedRun> finish();

 private:
  struct Stage {
    std::deque<Run> runs;    // those that may have been beside one that is not settled
    size_t settled = 0;      // of them
    uint64_t next_plan = 0;  // all before it are known
  };
  void settle(uint64_t known, std::vector<IsolatedRun>& settled);
  [[nodiscard]] IsolatedRun isolate(const Run& run) const;
  void forget_settled();

  size_t window_;
  SharedMachine machine_;
  std::vector<Stage> stages_;
};

}  // namespace millrace::sched
