#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cache/prefix_cache.h"
#include "sched/plan/plan.h"
#include "sched/scheduler/scheduler_options.h"
#include "sched/scheduler/sequence.h"

namespace millrace::sched {

/// A plan whose output has not come back.
struct InFlightPlan {
  std::vector<SequenceId> sequences;  ///< [slices]; empty for a plan of the startup profile
  std::vector<PlanSlice> slices;
};

/// Everything that the parts of the scheduler share: options, sequences, slots, pages and plans in flight. Plain data,
/// owned by Scheduler, used on the head's thread only; each part keeps a reference to it. Invariants, which
/// check_invariants() CHECKs:
/// * Every sequence of `sequences` is either in `waiting` or in `running`.
/// * A running sequence has a slot and pages, a waiting one has neither. Every other slot is in `free_slots`.
/// * Every device page is free, cached, or in the page tables of running sequences (PrefixCache::check_invariants).
/// * `in_flight` holds at most `options.window` plans, the oldest first, whose id is `plan_count − in_flight.size()`.
/// * Sequence::in_flight counts its slices in `in_flight`. They follow one another, and only the last one samples;
/// while
///   the sequence runs they end at Sequence::scheduled.
struct SchedulerState {
  explicit SchedulerState(const SchedulerOptions& scheduler_options);

  SchedulerOptions options;  ///< resize() sets the sizes of the pools and the context; the rest is constant
  cache::PrefixCache cache;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences;
  std::deque<Sequence*> waiting;     ///< in order of arrival, retracted ones first
  std::vector<Sequence*> running;    ///< in order of admission
  std::vector<SlotId> free_slots;    ///< the last one is given out next
  std::vector<SlotId> closed_slots;  ///< free here; the next plan closes them on the stages
  std::deque<InFlightPlan> in_flight;
  uint64_t plan_count = 0;  ///< plans of this ring; the id of the next one
  uint64_t turn = 0;        ///< turns that could make a plan, since the start

  [[nodiscard]] size_t pages_for(size_t tokens) const { return (tokens + options.page_size - 1) / options.page_size; }
  /// Returns whether the model has states, which stages keep up to the first draft of a step only.
  [[nodiscard]] bool keeps_states() const;
  /// Returns the sequence, or null if it is unknown.
  [[nodiscard]] Sequence* find(SequenceId id) const;

  /// Takes slot and pages from a running sequence, which is in no list afterwards. Its computed pages stay cached.
  void release(Sequence& sequence);
  /// Destroys a waiting or running sequence. Its slot and pages are free at once.
  void remove(Sequence& sequence);
  /// Counts a plan as in flight; its id is the former `plan_count`.
  void add_in_flight(InFlightPlan plan);
  /// Forgets the stages' state: removes all running sequences, and no plan is in flight any more. Returns the removed
  /// sequences in order of their ids.
  std::vector<SequenceId> forget_ring();
  /// Sets the sizes of the pools and the context that they allow, while no ring is there. Removes the waiting sequences
  /// that do not fit any more, and returns them in order of their ids.
  std::vector<SequenceId> resize(cache::PoolSizes pages);

  /// CHECKs the invariants. O(pages); for simulation.
  void check_invariants() const;
};

}  // namespace millrace::sched
