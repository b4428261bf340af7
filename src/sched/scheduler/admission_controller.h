#pragma once

#include <span>
#include <vector>

#include "sched/scheduler/new_token_ratio.h"
#include "sched/scheduler/plan_builder.h"
#include "sched/scheduler/scheduler_state.h"
#include "sched/scheduler/waiting_queue.h"

namespace millrace::sched {

/// Decides whether a waiting sequence may run, and admits it. There is room for it if a slot is free, and pages for its
/// tokens and for what all running sequences are expected to generate. A sequence alone needs its own pages only. Part
/// of Scheduler, with its thread and lifetime.
class AdmissionController {
 public:
  AdmissionController(SchedulerState& state, WaitingQueue& queue, PlanBuilder& builder)
      : state_(state), queue_(queue), builder_(builder), new_token_ratio_(state.options.new_token_ratio) {}

  /// Returns whether a slot and enough pages are free for the candidate.
  [[nodiscard]] bool has_room(Sequence& candidate) const;
  /// Returns whether the window groups hold what the candidate and `others` keep, and the largest plan.
  [[nodiscard]] bool windows_hold(const Sequence& candidate, std::span<Sequence* const> others) const;
  /// Returns whether has_room() holds for the queue's next sequence.
  [[nodiscard]] bool has_room_for_next() const;
  /// Returns the pages that the candidate needs if `others` run, beyond those that it finds on the device.
  [[nodiscard]] size_t pages_needed(Sequence& candidate, std::span<Sequence* const> others) const;
  /// Returns how many of the candidates, the first ones, have room at the same time. Each finds those before it
  /// running.
  [[nodiscard]] size_t count_with_room(std::span<Sequence* const> candidates) const;
  /// Moves the candidate from the queue to the running sequences and opens it in the plan, for a first slice of
  /// `slice_tokens`. False, and nothing happens, if it has no room, if the plan's message has none, or if its pages
  /// wait for copies.
  [[nodiscard]] bool admit(Sequence& candidate, uint32_t slice_tokens);

  /// Expects running sequences to generate a little less, since pages sufficed for a plan.
  void on_plan() { new_token_ratio_.after_plan(); }
  /// Expects running sequences to generate as much as at first, since pages ran out.
  void on_retraction() { new_token_ratio_.after_retraction(); }

 private:
  [[nodiscard]] uint64_t max_new_tokens(const Sequence& sequence) const;
  [[nodiscard]] bool windows_hold(std::span<const size_t> pages) const;
  void add_window_pages(const Sequence& sequence, std::vector<size_t>& pages) const;
  [[nodiscard]] size_t expected_pages(uint64_t new_tokens, size_t others) const;

  SchedulerState& state_;
  WaitingQueue& queue_;
  PlanBuilder& builder_;
  NewTokenRatio new_token_ratio_;
};

}  // namespace millrace::sched
