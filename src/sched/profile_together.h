#pragma once

#include <optional>
#include <vector>

#include "sched/profile_timing.h"
#include "sched/scratch_sequences.h"
#include "sched/sharing.h"

namespace millrace::sched {

/// The plans that time the stages of one machine while all of them compute: bursts of plans in flight at once, of
/// prompts, of decode steps, and of both in turns, of shapes that Profile has timed on each stage alone. Of kRounds
/// rounds of each burst the quicker one counts. Part of Profile.
class ProfileTogether {
 public:
  /// What the plans are made of. decode_count 0: no room for decode steps, the bursts are of prompts only.
  struct Shapes {
    uint32_t prompt_tokens = 0;
    uint32_t decode_count = 0;
    uint32_t decode_prompt = 0;  ///< tokens that the decoding sequences begin with
  };

  ProfileTogether(const Shapes& shapes, size_t stage_count, size_t window, const SharedMachine& machine);

  /// Plans of one burst, on as many stages.
  [[nodiscard]] static uint32_t plans_per_burst(size_t stage_count) {
    return 2 * static_cast<uint32_t>(stage_count) + 2;
  }
  [[nodiscard]] bool finished() const { return next_burst_ == bursts_.size(); }
  /// The next plan is not the first of its burst: it may be made while others are in flight.
  [[nodiscard]] bool goes_along() const { return next_place_ > 0; }
  /// No burst of the rounds that have not begun is run; the first round's always are.
  void stop_after_round();
  [[nodiscard]] Plan next(uint64_t plan, ScratchSequences& sequences);
  void record(const StageReport& report, const BatchShape& shape);

  /// What the runs took from each other beyond their shares of the processors; `alone`: the same shapes, timed stage by
  /// stage; `costs`: what was learnt of them.
  [[nodiscard]] Contention contention(const std::vector<ProfileTiming>& alone, const CostModel& costs) const;

 private:
  enum class Kind : uint8_t { kPrompts, kDecodes, kBoth };
  struct Burst {
    Kind kind = Kind::kPrompts;
    uint64_t first_plan = 0;
    std::vector<Sharing::Run> runs{};  // in the order of their reports
    [[nodiscard]] int64_t length_ns() const;
  };
  static constexpr size_t kRounds = 2;

  [[nodiscard]] std::vector<const Burst*> quickest() const;

  const Shapes shapes_;
  const size_t stage_count_;
  const size_t window_;
  const SharedMachine machine_;
  std::vector<Burst> bursts_;  // round by round
  size_t kinds_ = 0;           // bursts of a round
  size_t next_burst_ = 0;
  uint32_t next_place_ = 0;  // in that burst
};

}  // namespace millrace::sched
