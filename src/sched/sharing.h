#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "sched/cost_model.h"

namespace millrace::sched {

/// What the runs of stages that compute on the same processors would have taken alone. When k of them run with t
/// threads each on n processors, each goes on at the rate min(1, n / (k·t)): alone, a run takes the integral of that
/// rate over its time. The simulator slows stages down by the same rule. Plain data of the scheduler.
class Sharing {
 public:
  struct Run {
    StageId stage;
    uint64_t plan = 0;
    std::optional<BatchShape> shape;  ///< none: it took processors, and there is nothing to learn from it
    int64_t begin_ns = 0;             ///< on a clock that all stages share
    int64_t end_ns = 0;
  };
  struct Alone {
    StageId stage;
    BatchShape shape;
    double run_us = 0;
  };

  /// window: plans that can be in flight.
  Sharing(size_t stage_count, size_t window, uint32_t processors, uint32_t threads);

  /// Runs that go on at full speed at the same time.
  [[nodiscard]] double at_once() const { return processors_per_run_; }
  /// Each stage's runs come in the order of their plans. Returns those whose neighbours are all known by now: those of
  /// the plans that were in flight at the same time.
  [[nodiscard]] std::vector<Alone> add(const Run& run);

 private:
  struct Stage {
    std::deque<Run> runs;    // those that may have been beside one that is not settled
    size_t settled = 0;      // of them
    uint64_t next_plan = 0;  // all before it are known
  };
  [[nodiscard]] double alone_us(const Run& run) const;
  void forget_settled();

  size_t window_;
  double processors_per_run_;
  std::vector<Stage> stages_;
};

}  // namespace millrace::sched
