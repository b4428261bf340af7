#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/prefix_cache.h"
#include "sched/scheduler/chunking.h"
#include "sched/scheduler/drafter.h"
#include "sched/plan/mask_table.h"
#include "sched/plan/plan.h"
#include "sched/scheduler/startup_profiler.h"
#include "sched/scheduler/queue_policy.h"
#include "sched/scheduler/contention_estimator.h"

namespace millrace::sched {

/// How long a waiting request's prefetch from the page store may hold up its admission.
enum class PrefetchPolicy : uint8_t {
  kBestEffort,    ///< not at all: what has not come when it is its turn is computed
  kWaitComplete,  ///< until it has ended
  kTimeout,       ///< until it has ended or HeadOptions::prefetch_timeout has passed
};

inline constexpr EnumName<PrefetchPolicy> kPrefetchPolicyNames[] = {
    {PrefetchPolicy::kBestEffort, "best_effort"},
    {PrefetchPolicy::kWaitComplete, "wait_complete"},
    {PrefetchPolicy::kTimeout, "timeout"},
};
constexpr std::span<const EnumName<PrefetchPolicy>> enum_names(PrefetchPolicy) {
  return kPrefetchPolicyNames;
}

struct SchedulerOptions {
  uint32_t page_size = 64;
  uint32_t page_count = 0;
  uint32_t max_running = 0;           ///< slots
  uint32_t window = 1;                ///< plans that the head keeps in flight
  uint32_t chunked_prefill_size = 0;  ///< prompt tokens per plan
  uint32_t context_length = 0;        ///< prompt + output, at most what the pages hold: one sequence always fits
  uint32_t stage_count = 1;
  uint32_t vocab_size = 0;  ///< ids that every stage knows; 0: any
  Chunking chunking = Chunking::kFixed;
  double chunk_smoothing = 0.75;  ///< how far a chunk follows what is computed
  QueuePolicy policy = QueuePolicy::kFcfs;
  bool spread_decodes = true;    ///< over as many plans as are fastest; false: a plan takes all that are ready
  double new_token_ratio = 0.7;  ///< part of max_tokens that running requests are expected to draw, at first
  bool share_prefixes = true;    ///< keep what has been computed, for whoever has the same prefix
  uint32_t host_page_count = 0;  ///< of the host tier; 0: there is none
  bool has_store = false;        ///< the stages have a page store behind the host tier
  cache::WritePolicy write_policy = cache::WritePolicy::kWriteThrough;
  PrefetchPolicy prefetch_policy = PrefetchPolicy::kBestEffort;
  uint32_t processors = 0;     ///< that all stages share; 0: unknown, or they are on several machines
  uint32_t stage_threads = 1;  ///< that each of them computes with
  uint64_t first_copy_id = 1;  ///< cache::PrefixCacheOptions::first_copy_id
  uint32_t draft_tokens = 0;   ///< that a decode step may have, of one sequence
  bool draft_history = false;  ///< drafts also come from what the sequence has been so far
};

/// Whether an answer may be ended by a token that its grammar knows as an end: with ignore_eos none stops it.
[[nodiscard]] bool samples_end_token(const grammar::Grammar& grammar, const tensor::SamplingParams& sampling);

/// Rows that drafts may take of one micro-batch, and rows that a micro-batch may have.
[[nodiscard]] uint32_t max_draft_rows(uint32_t draft_tokens, uint32_t max_running);
[[nodiscard]] uint32_t max_plan_tokens(const SchedulerOptions& options);

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

  /// How long a plan is under way around the ring besides the runs of the stages, at least: on links, at the head.
  void set_transit(double transit_us) { transit_us_ = transit_us; }

  /// Queues a request that `admissible` accepted.
  void add(SequenceId id, GenerateRequest request);
  /// Why a request can never run: kInvalidArgument with the number of tokens that would.
  [[nodiscard]] Result<void> admissible(const GenerateRequest& request) const;
  /// Ends a sequence without an update; its pages are free at once. False if it is unknown.
  bool abort(SequenceId id);
  /// The ring is gone and its stages know nothing any more: forgets what is in flight and ends the running sequences,
  /// without updates; those in the queue stay. The ended ones, in order of their ids.
  [[nodiscard]] std::vector<SequenceId> on_ring_lost();

  /// No plans with slices are made until resume(). Those that ended, without updates, in order of their ids: all
  /// running and waiting ones with kAbort, else none.
  [[nodiscard]] std::vector<SequenceId> pause(PauseMode mode);
  void resume() { paused_ = false; }
  [[nodiscard]] bool paused() const { return paused_; }

  /// The next micro-batch, or nothing when nothing can be scheduled now. Its id and epoch are the caller's to set;
  /// every plan counts as in flight, and outputs must come back in the order of the plans.
  [[nodiscard]] std::optional<Plan> next();
  /// A plan without slices, which carries what else has to be told.
  [[nodiscard]] Plan empty_plan();
  /// Whether `output` answers the oldest plan in flight, slice by slice; kData: what it has, and what was wanted.
  [[nodiscard]] Result<void> check(const PlanOutput& output) const;
  /// Books the output of the oldest plan in flight.
  [[nodiscard]] std::vector<SequenceUpdate> complete(const PlanOutput& output);
  /// Books what the stages say of page copies; kData when they say what can't be.
  [[nodiscard]] Result<void> acknowledge(const std::vector<cache::CopyAck>& acks);
  /// A waiting sequence waits for its prefetch no longer.
  void stop_prefetch_wait(SequenceId id);
  /// Forgets all cached prefixes. False, and nothing happens, while requests wait or run or copies are under way.
  [[nodiscard]] bool flush_cache() { return sequences_.empty() && cache_.flush(); }

  /// The sequences of the plan made last, as its slices.
  [[nodiscard]] const std::vector<SequenceId>& newest_plan() const { return in_flight_.back().sequences; }
  /// The stages are being timed by scratch sequences; requests wait.
  [[nodiscard]] bool profiling() const { return profile_.has_value(); }
  /// Beside each other, by now.
  [[nodiscard]] bool profiling_contention() const { return profile_ && profile_->measures_contention(); }
  [[nodiscard]] const CostModel& costs() const { return chunker_.costs(); }
  /// The same, but for what stages on the same processors take from each other.
  [[nodiscard]] const CostModel& isolated_costs() const { return contention_estimator_ ? isolated_costs_ : costs(); }
  /// That, beyond their shares of the processors, as the start's profile found it.
  [[nodiscard]] Contention contention() const { return machine_ ? machine_->contention : Contention{}; }
  [[nodiscard]] size_t waiting_count() const { return waiting_.size(); }
  [[nodiscard]] size_t running_count() const { return running_.size(); }
  /// Pages that can be had: free, or cached and in nobody's use.
  [[nodiscard]] size_t free_pages() const { return cache_.available_pages(); }
  [[nodiscard]] const cache::PrefixCache& cache() const { return cache_; }
  /// Copies between tiers wait for a plan to carry them.
  [[nodiscard]] bool copies_pending() const { return cache_.has_copies(); }
  /// CHECKs what must hold between any two calls. O(pages); for simulation.
  void check_invariants() const;
  [[nodiscard]] size_t in_flight_plans() const { return in_flight_.size(); }
  [[nodiscard]] bool empty() const { return sequences_.empty(); }
  /// Sequences sent back to the queue for want of pages or slots, since the start.
  [[nodiscard]] uint64_t retraction_count() const { return retraction_count_; }
  [[nodiscard]] const DraftCounts& draft_counts() const { return draft_counts_; }

 private:
  struct InFlight {
    std::vector<SequenceId> sequences;  // as the slices; empty for a plan of the profile
    std::vector<PlanSlice> slices;
  };

  [[nodiscard]] std::optional<Plan> next_profile_plan();
  void preempt();
  void plan_decodes(Plan& plan);
  [[nodiscard]] uint32_t decode_plans(const BatchShape& decodes) const;
  [[nodiscard]] bool prefill_pending() const;
  void plan_prefills(Plan& plan);
  [[nodiscard]] std::vector<uint32_t> backlog() const;
  [[nodiscard]] std::vector<Sequence*> partial_prompts() const;
  void insert_by_priority(std::vector<Sequence*>& sequences, Sequence* added) const;
  void plan_short_prompts(Plan& plan, const std::vector<Sequence*>& begun);
  [[nodiscard]] static Chunker::Prompt prompt_of(const Sequence& sequence);
  [[nodiscard]] std::optional<size_t> next_waiting() const;
  const cache::RadixTree::Match& match(Sequence& sequence) const;
  void refresh_matches();
  [[nodiscard]] bool awaits_prefetch(const Sequence& sequence) const;
  [[nodiscard]] bool take_chunk(Plan& plan, Sequence& sequence);
  [[nodiscard]] bool take_first_chunk(Plan& plan, const Sequence* begun);
  [[nodiscard]] size_t pages_needed(Sequence& candidate, std::span<Sequence* const> others) const;
  [[nodiscard]] bool has_room(Sequence& candidate) const;
  [[nodiscard]] static size_t open_bytes(const Sequence& sequence);
  [[nodiscard]] bool fits_message(const Sequence& candidate) const;
  [[nodiscard]] bool admit(Plan& plan, Sequence& sequence);
  [[nodiscard]] bool higher_priority(const Sequence& a, const Sequence& b) const;
  void add_slice(Plan& plan, Sequence& sequence, uint32_t token_count);
  void record_shape(const Plan& plan);
  void add_draws(Plan& plan, Sequence& sequence);
  void plan_decode(Plan& plan, Sequence& sequence, double extra_row_cost);
  [[nodiscard]] size_t draft_room(const Sequence& sequence) const;
  [[nodiscard]] std::vector<Draft> likely_drafts(Sequence& sequence, size_t most, double extra_row_cost) const;
  [[nodiscard]] static std::vector<Draft> grammar_drafts(const Sequence& sequence, std::span<const Draft> guessed,
                                                         size_t most);
  [[nodiscard]] bool reserve_decode_page(Sequence& sequence);
  [[nodiscard]] Sequence* victim(Sequence& requester);
  void retract(Sequence& sequence);
  void requeue(Sequence& sequence);
  void finish_plan(Plan& plan);
  void prefetch(Sequence& sequence);
  void release_slot(Sequence& sequence);
  void remove(Sequence& sequence);
  void observe(const std::vector<StageReport>& reports);
  void observe(const StageReport& report, const std::optional<BatchShape>& shape);
  void finish_profile();
  void set_contention(const Contention& contention);
  [[nodiscard]] std::optional<GenerateEvent> book(Sequence& sequence, const SliceOutput& slice);
  void book_samples(Sequence& sequence, const SliceOutput& slice, GenerateEvent& event);
  void book_drafts(Sequence& sequence, std::span<const Draft> drafts, size_t accepted, GenerateEvent& event);
  void book_prompt_logprobs(Sequence& sequence, const SliceOutput& slice);
  [[nodiscard]] static Result<void> follow_grammar(Sequence& sequence);
  [[nodiscard]] std::optional<FinishReason> finish_reason(const Sequence& sequence) const;
  [[nodiscard]] size_t pages_for(size_t tokens) const;
  [[nodiscard]] uint64_t expected_tokens(const Sequence& sequence) const;
  void check_in_flight() const;

  const SchedulerOptions options_;
  const uint32_t max_draft_rows_;
  cache::PrefixCache cache_;
  Chunker chunker_;
  std::optional<SharedMachine> machine_;                     // where several stages are on one
  std::optional<ContentionEstimator> contention_estimator_;  // on that machine
  CostModel isolated_costs_;                                 // with contention_estimator_
  NewTokenRatio new_token_ratio_;
  std::optional<StartupProfiler> profile_;  // until every stage has been timed
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::deque<Sequence*> waiting_;   // in order of arrival, the retracted first
  std::vector<Sequence*> running_;  // in order of admission
  std::vector<SlotId> free_slots_;
  std::vector<SlotId> pending_closes_;  // free here already; the stages learn it with the next plan
  std::deque<InFlight> in_flight_;
  std::deque<std::optional<BatchShape>> shapes_;  // of the last plans: stages report late; none: not to be learnt from
  uint64_t plan_count_ = 0;                       // of this ring; the next plan's id
  uint64_t turn_ = 0;
  uint64_t retraction_count_ = 0;
  DraftCounts draft_counts_;
  MaskTable masks_;
  size_t open_bytes_ = 0;  // of the sequences that the plan being made opens
  size_t draft_rows_ = 0;  // of the plan being made
  double transit_us_ = 0;
  bool paused_ = false;
};

}  // namespace millrace::sched
