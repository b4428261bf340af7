#pragma once

#include <array>
#include <optional>
#include <vector>

#include "sched/scheduler/profile_timing.h"
#include "sched/scheduler/dummy_sequences.h"
#include "sched/scheduler/contention_estimator.h"

namespace millrace::sched {

/// Makes the plans that time stages of one machine while all of them compute, and estimates contention from the times.
/// Bursts of plans in flight at once have prompts, decode steps, and both in turns. Between bursts the same plans run
/// one at a time, so times alone and in a burst come from the same moments. Other load on the machine slows down both.
/// All of that is one round. Part of StartupProfiler, with its thread and lifetime.
class ContentionProfiler {
 public:
  /// What the plans have in them.
  struct Shapes {
    uint32_t prompt_tokens = 0;
    uint32_t decode_count = 0;   ///< 0: there is no room for decode steps, and all bursts are of prompts
    uint32_t decode_prompt = 0;  ///< prompt tokens of each decoding sequence
  };

  ContentionProfiler(const Shapes& shapes, size_t stage_count, size_t window, const SharedMachine& machine);

  /// Returns the tokens of a decoding sequence at the end of a round.
  [[nodiscard]] static uint32_t longest_decode(uint32_t decode_prompt, size_t stage_count);
  /// Returns whether all rounds were made for which there is time.
  [[nodiscard]] bool finished() const;
  /// Returns whether the next plan may be made while others are in flight.
  [[nodiscard]] bool allows_overlap() const { return !steps_[next_step_].drains_first; }
  /// Returns the next plan, whose id will be `plan`.
  [[nodiscard]] Plan next(uint64_t plan, DummySequences& sequences);
  /// Notes a stage's time for a plan; plans that are not of this profiler are ignored.
  void record(const StageReport& report, const BatchShape& shape);

  /// Returns how much runs slowed each other down beyond their shares of the processors. `costs` predicts runs alone.
  [[nodiscard]] Contention contention(const CostModel& costs) const;

  static constexpr size_t kMaxRounds = 5;
  /// The time for all rounds after the first, which always runs. It is short since clients wait.
  static constexpr int64_t kBudgetNs = 8'000'000'000;

 private:
  enum class Work : uint8_t { kOpen, kPrompt, kDecode };
  static constexpr size_t kIsolated = 0;  // not in a burst; the bursts of a round are counted from 1
  struct Step {
    Work work = Work::kPrompt;
    size_t burst = kIsolated;
    bool drains_first = true;  // it waits until nothing is in flight
  };
  struct Round {
    std::vector<uint64_t> plans;                 // by step
    std::vector<ContentionEstimator::Run> runs;  // in the order of their reports
    [[nodiscard]] std::optional<size_t> step_of(uint64_t plan) const;
    [[nodiscard]] int64_t length_ns() const;
  };

  /// The share of their time that the runs of one kind of work in one burst lost to contention.
  struct OverlapLoss {
    std::array<double, 4> overlap{};  // mean number of neighbours, by the terms of Contention
    double part = 0;                  // the lost share
    double runs = 0;                  // number of runs
    [[nodiscard]] double predicted_by(const Contention& contention) const;
  };

  void add_isolated(Work work) { steps_.push_back({.work = work}); }
  void add_burst(const std::vector<Work>& works);
  void append(Work work, Plan& plan, DummySequences& sequences);
  [[nodiscard]] double isolated_us(const Round& round, Work work, StageId stage) const;
  [[nodiscard]] std::vector<OverlapLoss> losses_of(const Round& round, const CostModel& costs,
                                                   const SharedMachine& machine) const;

  const Shapes shapes_;
  const size_t stage_count_;
  const size_t window_;
  const SharedMachine machine_;
  std::vector<Step> steps_;  // the steps of a round
  size_t burst_count_ = 0;   // bursts of a round
  std::vector<Round> rounds_;
  size_t next_step_ = 0;
  bool has_prompt_ = false;  // the prompt's slot is open in this round
};

}  // namespace millrace::sched
