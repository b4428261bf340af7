#pragma once

#include <array>
#include <optional>
#include <vector>

#include "sched/scheduler/profile_timing.h"
#include "sched/scheduler/dummy_sequences.h"
#include "sched/scheduler/contention_estimator.h"

namespace millrace::sched {

/// The plans that time the stages of one machine while all of them compute: bursts of plans in flight at once, of
/// prompts, of decode steps, and of both in turns. Between them the same plans run one at a time, so that what a run
/// takes alone and beside others is known of the same moments: whatever else the machine does then slows down both. A
/// round is all of that. Part of StartupProfiler.
class ContentionProfiler {
 public:
  /// What the plans are made of. decode_count 0: no room for decode steps, the bursts are of prompts only.
  struct Shapes {
    uint32_t prompt_tokens = 0;
    uint32_t decode_count = 0;
    uint32_t decode_prompt = 0;  ///< tokens that the decoding sequences begin with
  };

  ContentionProfiler(const Shapes& shapes, size_t stage_count, size_t window, const SharedMachine& machine);

  /// Tokens of a decoding sequence at the end of a round, on as many stages.
  [[nodiscard]] static uint32_t longest_decode(uint32_t decode_prompt, size_t stage_count);
  [[nodiscard]] bool finished() const;
  /// The next plan may be made while others are in flight.
  [[nodiscard]] bool allows_overlap() const { return !steps_[next_step_].drains_first; }
  [[nodiscard]] Plan next(uint64_t plan, DummySequences& sequences);
  void record(const StageReport& report, const BatchShape& shape);

  /// What the runs took from each other beyond their shares of the processors; `costs`: what is known of them.
  [[nodiscard]] Contention contention(const CostModel& costs) const;

  static constexpr size_t kMaxRounds = 5;
  /// Of all rounds but the first, which is always run: clients wait.
  static constexpr int64_t kBudgetNs = 8'000'000'000;

 private:
  enum class Work : uint8_t { kOpen, kPrompt, kDecode };
  static constexpr size_t kIsolated = 0;  // the bursts of a round are counted from 1 on
  struct Step {
    Work work = Work::kPrompt;
    size_t burst = kIsolated;
    bool drains_first = true;  // until nothing is in flight
  };
  struct Round {
    std::vector<uint64_t> plans;                 // by step
    std::vector<ContentionEstimator::Run> runs;  // in the order of their reports
    [[nodiscard]] std::optional<size_t> step_of(uint64_t plan) const;
    [[nodiscard]] int64_t length_ns() const;
  };

  /// What the runs of one burst and one kind of work lost of their time to what ran beside them.
  struct OverlapLoss {
    std::array<double, 4> overlap{};  // by the terms of Contention; means over that time
    double part = 0;
    double runs = 0;
    [[nodiscard]] double predicted_by(const Contention& contention) const;
  };

  void add_isolated(Work work) { steps_.push_back({work}); }
  void add_burst(const std::vector<Work>& works);
  void append(Work work, Plan& plan, DummySequences& sequences);
  [[nodiscard]] double isolated_us(const Round& round, Work work, StageId stage) const;
  [[nodiscard]] std::vector<OverlapLoss> losses_of(const Round& round, const CostModel& costs,
                                                   const SharedMachine& machine) const;

  const Shapes shapes_;
  const size_t stage_count_;
  const size_t window_;
  const SharedMachine machine_;
  std::vector<Step> steps_;  // of a round
  size_t burst_count_ = 0;   // in it
  std::vector<Round> rounds_;
  size_t next_step_ = 0;
  bool has_prompt_ = false;  // a prompt's slot is open in this round
};

}  // namespace millrace::sched
