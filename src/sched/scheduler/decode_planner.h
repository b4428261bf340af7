#pragma once

#include <vector>

#include "sched/scheduler/admission_controller.h"
#include "sched/scheduler/cost_tracker.h"
#include "sched/scheduler/draft_planner.h"
#include "sched/scheduler/plan_builder.h"
#include "sched/scheduler/preemptor.h"
#include "sched/scheduler/scheduler_state.h"

namespace millrace::sched {

/// Plans the decode steps of one plan: which of the decoding sequences whose last token has come back, and with which
/// drafts. Every plan takes its share of the decoding sequences, so that the plans in flight cost the same; those that
/// have waited longest go first. Part of Scheduler, with its thread and lifetime.
class DecodePlanner {
 public:
  DecodePlanner(SchedulerState& state, PlanBuilder& builder, Preemptor& preemptor, const AdmissionController& admission,
                const CostTracker& costs)
      : state_(state), builder_(builder), preemptor_(preemptor), admission_(admission), costs_(costs), drafts_(state) {}

  /// Sets the minimum time that a plan spends on its way around the ring outside of the stages' runs.
  void set_transit(double transit_us) { transit_us_ = transit_us; }
  /// Adds decode steps to the plan being built.
  void plan();

 private:
  [[nodiscard]] size_t max_steps(const BatchShape& decodes, size_t ready_count) const;
  [[nodiscard]] bool prefill_pending() const;
  void add_step(Sequence& sequence, size_t later_replays, double extra_row_cost);

  SchedulerState& state_;
  PlanBuilder& builder_;
  Preemptor& preemptor_;
  const AdmissionController& admission_;
  const CostTracker& costs_;
  DraftPlanner drafts_;
  double transit_us_ = 0;
};

}  // namespace millrace::sched
