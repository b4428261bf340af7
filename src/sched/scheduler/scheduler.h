#pragma once

#include <optional>
#include <vector>

#include "sched/plan/pause_mode.h"
#include "sched/scheduler/admission_controller.h"
#include "sched/scheduler/chunker.h"
#include "sched/scheduler/cost_tracker.h"
#include "sched/scheduler/decode_planner.h"
#include "sched/scheduler/output_processor.h"
#include "sched/scheduler/plan_builder.h"
#include "sched/scheduler/preemptor.h"
#include "sched/scheduler/prefill_planner.h"
#include "sched/scheduler/scheduler_options.h"
#include "sched/scheduler/scheduler_state.h"
#include "sched/scheduler/waiting_queue.h"

namespace millrace::sched {

/// Decides what runs: it makes plans and books their outputs. A turn preempts for the queue's next request, plans
/// decode steps, then prefill with the rest of the budget. It is deterministic and has no clock, no I/O and no
/// suspension. Owned by Head and called on the head's thread only; it lives as long as the head. docs/scheduling.md is
/// the contract.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Sets the minimum time that a plan spends outside of the stages' runs: on links and at the head.
  void set_transit(double transit_us) { decodes_.set_transit(transit_us); }

  /// Queues a request that `admissible` accepted.
  void add(SequenceId id, GenerateRequest request) { queue_.add(id, std::move(request)); }
  /// Adds the request, unless `max_queued` requests would have to wait for a slot or pages without it already. Returns
  /// the sequence that has no place in the queue: this one, or one that it outranks, which has ended without an update.
  [[nodiscard]] std::optional<SequenceId> offer(SequenceId id, GenerateRequest request, uint32_t max_queued);
  /// Returns kInvalidArgument, with the numbers that do not fit, for a request that can never run.
  [[nodiscard]] Result<void> admissible(const GenerateRequest& request) const { return queue_.admissible(request); }
  /// Ends a sequence without an update; its pages are free at once. False if it is unknown.
  bool abort(SequenceId id);
  /// Forgets what is in flight, since the ring broke and its stages know nothing any more. Running sequences end
  /// without updates and are returned in order of their ids; waiting ones stay.
  [[nodiscard]] std::vector<SequenceId> on_ring_lost();

  /// Sets the sizes of the pools of the next ring, and the context that they allow; all cached prefixes are forgotten.
  /// Waiting sequences that do not fit any more end without updates and are returned in order of their ids. No ring is
  /// there.
  [[nodiscard]] std::vector<SequenceId> resize(cache::PoolSizes pages);

  /// Makes no plans with slices until resume(). Returns the sequences that ended without updates, in order of their
  /// ids: all with kAbort, else none.
  [[nodiscard]] std::vector<SequenceId> pause(PauseMode mode);
  void resume() { paused_ = false; }
  [[nodiscard]] bool paused() const { return paused_; }

  /// Returns the next micro-batch, or nothing if nothing can be scheduled now. The caller sets id and epoch. The plan
  /// counts as in flight, and outputs must come back in the order of the plans.
  [[nodiscard]] std::optional<Plan> next();
  /// Returns a plan without slices, which carries closes and page copies. It counts as in flight too.
  [[nodiscard]] Plan empty_plan();
  /// Returns kData unless `output` fits the oldest plan in flight, slice by slice.
  [[nodiscard]] Result<void> check(const PlanOutput& output) const { return outputs_.check(output); }
  /// Books the output of the oldest plan in flight.
  [[nodiscard]] std::vector<SequenceUpdate> complete(const PlanOutput& output);
  /// Returns whether sequences wait for their token masks. The others run without them.
  [[nodiscard]] bool masks_pending() const { return outputs_.masks_pending(); }
  /// Computes token masks, up to SchedulerOptions::mask_steps. Returns the sequences that end, since nothing can
  /// follow.
  [[nodiscard]] std::vector<SequenceUpdate> work_on_masks() { return outputs_.work_on_masks(); }
  /// Books finished page copies; kData for an ack that fits no copy.
  [[nodiscard]] Result<void> acknowledge(const std::vector<cache::CopyAck>& acks);
  /// Lets a waiting sequence be admitted before its prefetch has ended.
  void stop_prefetch_wait(SequenceId id) { queue_.stop_prefetch_wait(id); }
  /// Forgets all cached prefixes. False, and nothing happens, while requests exist or copies are under way.
  [[nodiscard]] bool flush_cache() { return empty() && state_.cache.flush(); }

  /// Returns the options, with the sizes of the pools and the context as they are now.
  [[nodiscard]] const SchedulerOptions& options() const { return state_.options; }
  /// Returns the sequences of the newest plan, one per slice.
  [[nodiscard]] const std::vector<SequenceId>& newest_plan() const { return state_.in_flight.back().sequences; }
  /// Returns whether the stages are being timed by dummy sequences; requests wait.
  [[nodiscard]] bool profiling() const { return costs_.profiling(); }
  /// Returns whether stages are being timed that compute at the same time.
  [[nodiscard]] bool profiling_contention() const { return costs_.profiling_contention(); }
  /// Returns the costs of runs as they are, with the contention of other stages.
  [[nodiscard]] const CostModel& costs() const { return costs_.costs(); }
  /// Returns the costs of runs without contention.
  [[nodiscard]] const CostModel& isolated_costs() const { return costs_.isolated_costs(); }
  /// Returns the contention that the startup profile found.
  [[nodiscard]] Contention contention() const { return costs_.contention(); }
  [[nodiscard]] size_t waiting_count() const { return state_.waiting.size(); }
  [[nodiscard]] size_t running_count() const { return state_.running.size(); }
  /// Returns the pages that are free, or cached and not in use.
  [[nodiscard]] size_t free_pages() const { return state_.cache.available_pages(); }
  [[nodiscard]] const cache::PrefixCache& cache() const { return state_.cache; }
  /// Returns whether page copies wait for a plan to carry them.
  [[nodiscard]] bool copies_pending() const { return state_.cache.has_copies(); }
  /// CHECKs the invariants of SchedulerState. O(pages); for simulation.
  void check_invariants() const { state_.check_invariants(); }
  [[nodiscard]] size_t in_flight_plans() const { return state_.in_flight.size(); }
  /// Returns whether no sequence exists.
  [[nodiscard]] bool empty() const { return state_.sequences.empty(); }
  /// Returns the sequences sent back to the queue for want of pages or slots, since the start.
  [[nodiscard]] uint64_t retraction_count() const { return preemptor_.retraction_count(); }
  [[nodiscard]] const DraftCounts& draft_counts() const { return outputs_.draft_counts(); }

 private:
  [[nodiscard]] Sequence* overflow(Sequence& newcomer, uint32_t max_queued) const;
  [[nodiscard]] std::optional<Plan> next_profile_plan();
  [[nodiscard]] Plan take_plan();

  // Each part refers to those before it.
  SchedulerState state_;
  Chunker chunker_;
  CostTracker costs_;
  WaitingQueue queue_;
  PlanBuilder builder_;
  AdmissionController admission_;
  Preemptor preemptor_;
  DecodePlanner decodes_;
  PrefillPlanner prefills_;
  OutputProcessor outputs_;
  bool paused_ = false;
};

}  // namespace millrace::sched
