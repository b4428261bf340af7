#pragma once

#include <span>
#include <vector>

#include "sched/scheduler/drafter.h"
#include "sched/scheduler/scheduler_state.h"

namespace millrace::sched {

/// Chooses the drafts of a decode step: from the sequence's Drafter, and from its grammar where that leaves one token
/// only. A draft is kept while it is likely enough to be worth its row. Part of Scheduler, with its thread and
/// lifetime.
class DraftPlanner {
 public:
  explicit DraftPlanner(const SchedulerState& state);

  /// Starts a plan, with a new budget of work on token masks.
  void begin() { mask_budget_ = grammar::WorkBudget(state_.options.mask_steps); }

  /// Returns whether a plan with `used_rows` draft rows has room for the drafts that a sequence replays.
  [[nodiscard]] bool has_room(const Sequence& sequence, size_t used_rows) const {
    return sequence.replayed + used_rows <= max_rows_;
  }
  /// Returns the drafts of a decoding sequence's next step, none of which is a stop token. `used_rows`: draft rows of
  /// the plan so far. `extra_row_cost`: CostModel::extra_row_cost of the plan.
  [[nodiscard]] std::vector<Draft> propose(Sequence& sequence, size_t used_rows, double extra_row_cost);

 private:
  [[nodiscard]] size_t max_drafts(const Sequence& sequence, size_t used_rows) const;
  [[nodiscard]] Drafter* drafter_of(Sequence& sequence) const;
  [[nodiscard]] std::vector<Draft> follow_grammar(const Sequence& sequence, std::span<const Draft> guesses,
                                                  size_t max_count);

  const SchedulerState& state_;
  const uint32_t max_rows_;  // of one plan
  grammar::WorkBudget mask_budget_;
};

}  // namespace millrace::sched
