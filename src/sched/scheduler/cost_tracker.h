#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "sched/scheduler/chunker.h"
#include "sched/scheduler/contention_estimator.h"
#include "sched/scheduler/scheduler_options.h"
#include "sched/scheduler/startup_profiler.h"

namespace millrace::sched {

/// Estimates what micro-batches cost: from the startup profile, whose plans it makes, and then from the report of every
/// plan. It keeps two models: the chunker's predicts a run as it is, with the contention of the other stages; the
/// isolated one predicts a run alone. They differ only if several stages share one machine. Part of Scheduler, with its
/// thread and lifetime.
class CostTracker {
 public:
  CostTracker(const SchedulerOptions& options, Chunker& chunker);

  /// Returns whether the startup profile goes on; requests wait meanwhile.
  [[nodiscard]] bool profiling() const { return profiler_.has_value(); }
  /// Returns whether the startup profile times stages that compute at the same time.
  [[nodiscard]] bool profiling_contention() const { return profiler_ && profiler_->measures_contention(); }
  /// Returns the profile's next plan, which will have this id, or nothing if it waits for the plans in flight.
  [[nodiscard]] std::optional<Plan> next_profile_plan(uint64_t plan_id, size_t in_flight_count);
  /// Ends the startup profile if all its plans have come back: both models start from its timings.
  void end_profile_if_finished(size_t in_flight_count);

  /// Notes the shape of the next plan, ids counting from 0 after the construction and after on_ring_lost().
  void record_plan(const Plan& plan);
  /// Updates the models with the timings of plans that were recorded. Others are ignored.
  void observe(const std::vector<StageReport>& reports);
  /// Starts an unfinished profile over and forgets the recorded plans; the fits stay.
  void on_ring_lost();

  /// Takes over the sizes of the pools and the context. An unfinished profile starts over.
  void resize(const SchedulerOptions& options);

  /// Returns the costs of runs as they are.
  [[nodiscard]] const CostModel& costs() const { return chunker_.costs(); }
  /// Returns the costs of runs without contention.
  [[nodiscard]] const CostModel& isolated_costs() const { return contention_estimator_ ? isolated_costs_ : costs(); }
  /// Returns the machine that all stages share, if they do.
  [[nodiscard]] const std::optional<SharedMachine>& machine() const { return machine_; }
  /// Returns the contention that the startup profile found.
  [[nodiscard]] Contention contention() const { return machine_ ? machine_->contention : Contention{}; }

 private:
  void observe(const StageReport& report, const std::optional<BatchShape>& shape);
  void set_contention(const Contention& contention);

  SchedulerOptions options_;
  Chunker& chunker_;
  std::optional<SharedMachine> machine_;
  std::optional<ContentionEstimator> contention_estimator_;  // with machine_
  CostModel isolated_costs_;                                 // with contention_estimator_
  std::optional<StartupProfiler> profiler_;                  // until every stage has been timed
  std::deque<std::optional<BatchShape>> shapes_;  // of the last plans, since stages report late; none: do not learn
  uint64_t first_shape_ = 0;                      // plan id of shapes_.front()
};

/// Returns the stages that compute at full speed at the same time; infinity unless they share one machine.
[[nodiscard]] double parallel_stages(const SchedulerOptions& options);

}  // namespace millrace::sched
