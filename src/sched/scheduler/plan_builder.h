#pragma once

#include <vector>

#include "sched/plan/mask_table.h"
#include "sched/plan/plan.h"
#include "sched/scheduler/scheduler_state.h"

namespace millrace::sched {

/// Writes one plan at a time: opens, slices with their tokens, pages and token masks. It alone advances
/// Sequence::scheduled, so that sequences and plan agree. begin() starts a plan, take() ends it. Part of Scheduler,
/// with its thread and lifetime; between plans it keeps only what the last stage's mask table has.
class PlanBuilder {
 public:
  explicit PlanBuilder(SchedulerState& state);

  /// Starts an empty plan.
  void begin();
  /// Returns whether the message has room for opening the sequence. A sequence alone always has room.
  [[nodiscard]] bool can_open(const Sequence& sequence) const;
  /// Opens a sequence that has just got its slot and pages.
  void open(const Sequence& sequence);
  /// Adds the next `token_count` tokens of a running sequence that awaits no mask, and its drafts. The last chunk of
  /// its tokens samples. Its page tables reach to the end of these.
  void add_slice(Sequence& sequence, uint32_t token_count);
  /// Ends the plan with the closes and page copies that wait for one, and counts it as in flight.
  [[nodiscard]] Plan take();
  /// Forgets the last stage's masks.
  void on_ring_lost() { masks_.clear(); }

  [[nodiscard]] const std::vector<PlanSlice>& slices() const { return plan_.slices; }
  /// Returns the rows of the plan so far that are drafts, or accepted drafts of earlier plans.
  [[nodiscard]] size_t draft_rows() const { return draft_rows_; }

 private:
  void add_window_pages(Sequence& sequence);
  void add_sample_masks(Sequence& sequence);

  SchedulerState& state_;
  MaskTable masks_;
  Plan plan_;
  std::vector<SequenceId> sequences_;  // [slices]
  size_t open_bytes_ = 0;
  size_t draft_rows_ = 0;
};

}  // namespace millrace::sched
