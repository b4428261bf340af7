#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "sched/scheduler/contention_profiler.h"

namespace millrace::sched {

/// Bounds of the profile's plans, as the scheduler has them.
struct StartupProfilerOptions {
  uint32_t page_size = 0;
  uint32_t page_count = 0;
  std::vector<cache::WindowPool> windows = {};
  uint32_t max_running = 0;
  uint32_t chunk_size = 0;  ///< largest number of prompt tokens in a micro-batch
  uint32_t context_length = 0;
  uint32_t prompt_samples = 0;  ///< additional prompts, of lengths evenly up to longest_sample
  uint32_t longest_sample = 0;
  uint32_t vocab_size = 0;  ///< token ids that every stage knows
  bool sample = true;       ///< the last stage can sample
  uint32_t stage_count = 1;
  uint32_t window = 1;
  std::optional<SharedMachine> machine;  ///< the machine that all stages share, if they do
};

/// Makes the plans that time every stage before the first request, on dummy sequences. They are prompts of several
/// lengths, chunks after a prefix, and decode steps of one and of many sequences. They are ordinary plans, so that
/// stages know nothing of the profile. Clients wait meanwhile. Probes of short prompts come first, touch the memory,
/// and show how long the other prompts may be for the rounds to fit into kBudgetUs. There are up to kRounds rounds of
/// the same plans, as long as another one fits. The shortest time of each plan counts, since other load only makes a
/// stage slower. Then, if several stages share a machine, ContentionProfiler times them at once. Owned by CostTracker
/// until it ends.
class StartupProfiler {
 public:
  explicit StartupProfiler(const StartupProfilerOptions& bounds);

  /// Returns the next plan, whose id will be `plan`; nothing after the last one. The last one has no slices: it closes
  /// the dummy sequences and collects the last reports.
  [[nodiscard]] std::optional<Plan> next(uint64_t plan);
  /// Returns whether the next plan may be made while others are in flight.
  [[nodiscard]] bool allows_overlap() const { return contention_profiler_ && contention_profiler_->allows_overlap(); }
  /// Returns whether the timing of stages that compute at the same time has begun.
  [[nodiscard]] bool measures_contention() const { return contention_profiler_.has_value(); }
  /// Returns whether the last plan was made.
  [[nodiscard]] bool finished() const { return closed_; }

  /// Notes a stage's time for a plan; plans that are not of the profile are ignored.
  void record(const StageReport& report, const BatchShape& shape);
  /// Returns the timings of stages alone: the shortest of all rounds for each plan, with outliers clamped.
  [[nodiscard]] std::vector<ProfileTiming> timings() const;
  /// Returns how much stages slow each other down; zero if no two share a machine. `costs` is fitted to timings().
  [[nodiscard]] Contention contention(const CostModel& costs) const;

  static constexpr size_t kRounds = 3;
  /// Time of all plans of stages alone, summed over the stages.
  static constexpr double kBudgetUs = 8e6;

 private:
  struct Step {
    uint32_t sequences = 1;
    uint32_t tokens = 0;         // of each sequence
    uint32_t cached_prefix = 0;  // cached tokens before them, on new sequences
    bool fresh = false;          // on new sequences; else the next tokens of the open ones
    bool is_recorded = true;
    bool first_round_only = false;
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
  std::vector<Step> steps_;    // the probes, then the steps of a round
  std::vector<size_t> order_;  // indices of steps_ in the order in which they are run
  size_t next_step_ = 0;       // index of order_
  size_t probes_ = 0;
  std::vector<std::pair<ProbeTiming, ProbeTiming>> probe_timings_;  // by stage: the shortest and the longest probe
  size_t rounds_ = 0;                                               // rounds begun
  double round_us_ = 0;   // time of this round's steps that the next one would repeat, on all stages
  double run_us_ = 0;     // time of all plans on all stages
  uint32_t longest_ = 0;  // tokens of the longest prompt
  std::optional<ContentionProfiler> contention_profiler_;
  bool closed_ = false;        // the last plan was made
  std::vector<uint64_t> ids_;  // ids of the plans of order_, ascending
  DummySequences dummies_;
};

}  // namespace millrace::sched
