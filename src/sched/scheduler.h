#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cache/page_pool.h"
#include "sched/plan.h"
#include "sched/request.h"
#include "sched/sequence.h"

namespace millrace::sched {

struct SchedulerOptions {
  uint32_t page_size = 64;
  uint32_t page_count = 0;
  uint32_t max_running = 0;           ///< slots
  uint32_t window = 1;                ///< plans that the head keeps in flight; decode is spread over them
  uint32_t chunked_prefill_size = 0;  ///< prompt tokens per plan
  uint32_t context_length = 0;        ///< prompt + output, at most what the pages hold: one sequence always fits
};

/// News of one sequence for its client.
struct SequenceUpdate {
  SequenceId id;
  GenerateEvent event;
};

/// Decides what runs: admission, chunks, decode steps, pages. Plain and deterministic: no clock, no I/O, no suspension;
/// owned by the head loop and called on its thread only. docs/scheduling.md is the contract.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  /// Queues a request that `admissible` accepted.
  void add(SequenceId id, GenerateRequest request);
  /// Why a request can never run: kInvalidArgument with the number of tokens that would.
  [[nodiscard]] Result<void> admissible(const GenerateRequest& request) const;
  /// Ends a sequence without an update; its pages are free at once. False if it is unknown.
  bool abort(SequenceId id);
  /// The ring is gone and its stages know nothing any more: forgets what is in flight and ends the running sequences,
  /// without updates; those in the queue stay. The ended ones, in order of their ids.
  [[nodiscard]] std::vector<SequenceId> lose_ring();

  /// The next micro-batch, or nothing when nothing can be scheduled now. Its id and generation are the caller's to set;
  /// every plan counts as in flight, and outputs must come back in the order of the plans.
  [[nodiscard]] std::optional<Plan> next();
  /// A plan without slices, which carries what else has to be told.
  [[nodiscard]] Plan empty_plan();
  /// Books the output of the oldest plan in flight.
  [[nodiscard]] std::vector<SequenceUpdate> complete(const PlanOutput& output);

  /// The sequences of the plan made last, as its slices.
  [[nodiscard]] const std::vector<SequenceId>& newest_plan() const { return in_flight_.back(); }
  [[nodiscard]] size_t waiting_count() const { return waiting_.size(); }
  [[nodiscard]] size_t running_count() const { return running_.size(); }
  [[nodiscard]] size_t free_pages() const { return pool_.free_count(); }
  [[nodiscard]] size_t in_flight_plans() const { return in_flight_.size(); }
  [[nodiscard]] bool empty() const { return sequences_.empty(); }
  /// Slots whose closing still has to travel; an idle head sends an empty plan for them.
  [[nodiscard]] bool closes_pending() const { return !pending_closes_.empty(); }
  /// Sequences sent back to the queue for want of pages, since the start.
  [[nodiscard]] uint64_t retraction_count() const { return retraction_count_; }

 private:
  void plan_decodes(Plan& plan);
  void plan_prefills(Plan& plan);
  [[nodiscard]] Sequence* admit(Plan& plan);
  void add_slice(Plan& plan, Sequence& sequence, uint32_t token_count);
  [[nodiscard]] bool reserve_decode_page(Sequence& sequence);
  void retract(Sequence& sequence);
  void leave(Sequence& sequence);
  void remove(Sequence& sequence);
  [[nodiscard]] std::optional<GenerateEvent> book(Sequence& sequence, const SliceOutput& slice);
  void book_scores(Sequence& sequence, const SliceOutput& slice);
  [[nodiscard]] std::optional<FinishReason> finish_reason(const Sequence& sequence) const;
  [[nodiscard]] size_t pages_for(size_t tokens) const;

  const SchedulerOptions options_;
  cache::PagePool pool_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;                     // in order of admission
  std::vector<SlotId> free_slots_;
  std::vector<SlotId> pending_closes_;                 // free here already; the stages learn it with the next plan
  std::deque<std::vector<SequenceId>> in_flight_;      // per plan, its slices' sequences
  uint64_t turn_ = 0;
  uint64_t retraction_count_ = 0;
};

}  // namespace millrace::sched
