#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "sched/plan/draft_counts.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/plan.h"
#include "sched/plan/plan_output.h"
#include "sched/scheduler/scheduler_state.h"

namespace millrace::sched {

/// What has happened to one sequence, for its client.
struct SequenceUpdate {
  SequenceId id;
  GenerateEvent event;
};

/// Books what comes back for a plan: sampled tokens and their log-probabilities, accepted drafts, prompt scores, and
/// the ends of sequences. Part of Scheduler, with its thread and lifetime.
class OutputProcessor {
 public:
  explicit OutputProcessor(SchedulerState& state) : state_(state) {}

  /// Returns kData unless the output belongs to the oldest plan in flight and has what each of its slices wants.
  [[nodiscard]] Result<void> check(const PlanOutput& output) const;
  /// Books the slices of a plan that is not in flight any more. Sequences that end are removed; those that were removed
  /// before are skipped.
  [[nodiscard]] std::vector<SequenceUpdate> book(const InFlightPlan& plan, const PlanOutput& output);
  /// Returns whether a sequence awaits its token mask.
  [[nodiscard]] bool masks_pending() const { return !awaiting_masks().empty(); }
  /// Does a slice of the work on token masks, sequence by sequence. Each call begins with another one. Sequences that
  /// end are removed.
  [[nodiscard]] std::vector<SequenceUpdate> work_on_masks();
  /// Returns what became of drafts since the start.
  [[nodiscard]] const DraftCounts& draft_counts() const { return draft_counts_; }

 private:
  [[nodiscard]] std::optional<GenerateEvent> book(Sequence& sequence, const SliceOutput& slice);
  /// Appends a sampled token to the sequence's grammar. `draft` is the draft that it equals, or null.
  [[nodiscard]] Result<void> append_to_grammar(Sequence& sequence, const Draft* draft);
  [[nodiscard]] std::vector<Sequence*> awaiting_masks() const;
  /// Ends the event if the output is complete, or with an error if nothing can follow.
  void conclude(const Sequence& sequence, GenerateEvent& event) const;
  void book_samples(Sequence& sequence, const SliceOutput& slice, GenerateEvent& event);
  void book_drafts(Sequence& sequence, std::span<const Draft> drafts, size_t accepted, GenerateEvent& event);
  [[nodiscard]] std::optional<FinishReason> finish_reason(const Sequence& sequence) const;

  SchedulerState& state_;
  DraftCounts draft_counts_;
  grammar::WorkBudget mask_budget_{0};  // of the output that is being booked
  size_t mask_slices_ = 0;              // since the start
};

}  // namespace millrace::sched
