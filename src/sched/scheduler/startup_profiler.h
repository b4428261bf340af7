#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "sched/scheduler/contention_profiler.h"

namespace millrace::sched {

struct StartupProfilerOptions {
  uint32_t page_size = 0;
  uint32_t page_count = 0;
  uint32_t max_running = 0;
  uint32_t chunk_size = 0;  ///< most prompt tokens in a micro-batch
  uint32_t context_length = 0;
  uint32_t prompt_samples = 0;  ///< prompts of so many lengths, evenly up to longest_sample, besides
  uint32_t longest_sample = 0;
  uint32_t vocab_size = 0;  ///< ids that every stage knows
  uint32_t stage_count = 1;
  uint32_t window = 1;
  std::optional<SharedMachine> machine;  ///< that all stages compute on
};

/// The plans that time every stage before the first request: prompts of several lengths, chunks after a prefix, decode
/// steps of one and of many sequences, on scratch sequences whose slots are closed again. Clients wait meanwhile: short
/// prompts go first, touch the memory, and say how long the others may be for the rounds to fit into kBudgetUs, the
/// largest chunk, a half of it, a quarter and so on. There are up to kRounds rounds of the same plans, as long as
/// another one fits, and the shortest time of each counts: what else goes on beside a stage only makes it slower. Then,
/// where several stages share a machine, all are timed at once (ContentionProfiler). Ordinary plans, so that the stages
/// know nothing of it. Used by the scheduler while nothing else runs.
class StartupProfiler {
 public:
  explicit StartupProfiler(const StartupProfilerOptions& bounds);

  /// The next plan, whose id will be `plan`. The last one is empty: it closes the scratch sequences, and brings the
  /// last timings home.
  [[nodiscard]] std::optional<Plan> next(uint64_t plan);
  /// The next plan may be made while others are in flight.
  [[nodiscard]] bool allows_overlap() const { return contention_profiler_ && contention_profiler_->allows_overlap(); }
  /// Stages are timed beside each other now, or have been.
  [[nodiscard]] bool measures_contention() const { return contention_profiler_.has_value(); }
  [[nodiscard]] bool finished() const { return closed_; }

  /// A stage's time for a plan; plans of others are ignored.
  void record(const StageReport& report, const BatchShape& shape);
  /// What was measured of stages alone: every round's, with the shortest time of all rounds, outliers bounded.
  [[nodiscard]] std::vector<ProfileTiming> timings() const;
  /// What stages take from each other; `costs` has learnt timings(). Nothing where no two share a machine.
  [[nodiscard]] Contention contention(const CostModel& costs) const;

  static constexpr size_t kRounds = 3;
  /// Of all stages one after the other, timed alone.
  static constexpr double kBudgetUs = 8e6;

 private:
  struct Step {
    uint32_t sequences = 1;
    uint32_t tokens = 0;         // of each
    uint32_t cached_prefix = 0;  // of a prefix that is cached, if it is fresh
    bool fresh = false;          // on new sequences; else the next tokens of those that are open
    bool is_recorded = true;
    bool first_round_only = false;      // in the first round only
    std::vector<ProfileTiming> best{};  // by stage
    [[nodiscard]] bool repeats(const Step& other) const {
      return !fresh && !other.fresh && tokens == 1 && other.tokens == 1 && sequences == other.sequences;
    }
  };
  struct ProbeTiming {
    uint32_t tokens = 0;
    double us = 0;
  };

  void extend();
  [[nodiscard]] uint32_t next_probe() const;
  [[nodiscard]] double probed_us(double plans, double tokens) const;
  [[nodiscard]] uint32_t affordable_prompt() const;
  [[nodiscard]] uint32_t max_decodes(uint32_t longest) const;
  void add_prefills();
  void add_decodes();
  void begin_contention();
  [[nodiscard]] double slowest_us(uint32_t prompt_tokens) const;
  [[nodiscard]] Plan next_isolated();

  const StartupProfilerOptions bounds_;
  std::vector<Step> steps_;    // the probes, then those of the rounds
  std::vector<size_t> order_;  // of steps_, as they are run
  size_t next_step_ = 0;       // of order_
  size_t probes_ = 0;
  std::vector<std::pair<ProbeTiming, ProbeTiming>> probe_timings_;  // by stage: the shortest, the longest
  size_t rounds_ = 0;                                               // begun
  double round_us_ = 0;   // of what the next round would repeat of this one, on all stages
  double run_us_ = 0;     // of all plans on all stages
  uint32_t longest_ = 0;  // of the prompts timed
  std::optional<ContentionProfiler> contention_profiler_;
  bool closed_ = false;        // the last plan has been made
  std::vector<uint64_t> ids_;  // of the plans of order_, ascending
  DummySequences dummies_;
};

}  // namespace millrace::sched
