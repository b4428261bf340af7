#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ids.h"

/// The life of one plan: when it was made, and what each stage did when. Times are ns on the head's clock.
namespace millrace::sched {

/// Why a stage did not compute. docs/observing.md says how the causes are distinguished.
enum class WaitCause : uint8_t {
  kUneven,           ///< micro-batches or stages of unequal length
  kLateActivations,  ///< its activations were on a link
  kHeadLate,         ///< there was work and room in the window, but the head's plan came late
  kNothingToDo,      ///< too few requests to fill the window
  kFillDrain,        ///< the ring was filling or draining around a pause
  kOverhead,         ///< plan and activations were there: the stage's own loop
  kIdle,             ///< no request at all; not counted as a bubble
};
inline constexpr size_t kWaitCauseCount = 7;
inline constexpr std::array<std::string_view, kWaitCauseCount> kWaitCauseNames = {
    "uneven", "late_activations", "head_late", "nothing_to_do", "fill_drain", "overhead", "idle"};

/// Nanoseconds by WaitCause. Plain data.
class WaitTimes {
 public:
  [[nodiscard]] int64_t& operator[](WaitCause cause) { return ns_[static_cast<size_t>(cause)]; }
  [[nodiscard]] int64_t operator[](WaitCause cause) const { return ns_[static_cast<size_t>(cause)]; }
  [[nodiscard]] int64_t total_ns() const {
    int64_t sum = 0;
    for (const int64_t ns : ns_) sum += ns;
    return sum;
  }
  [[nodiscard]] int64_t bubble_ns() const { return total_ns() - (*this)[WaitCause::kIdle]; }
  [[nodiscard]] WaitCause main_cause() const {
    return static_cast<WaitCause>(std::ranges::max_element(ns_) - ns_.begin());
  }
  WaitTimes& operator+=(const WaitTimes& other) {
    for (size_t i = 0; i < kWaitCauseCount; ++i) ns_[i] += other.ns_[i];
    return *this;
  }

 private:
  std::array<int64_t, kWaitCauseCount> ns_{};
};

/// The run of a plan on one rank of a stage other than the leader.
struct RankSpan {
  bool known = false;  ///< its report has arrived
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

/// One stage's part of a plan, as its leader ran it. `wait` explains the time from free_ns to begin_ns.
struct StageSpan {
  bool known = false;  ///< its report has arrived
  int64_t plan_ns = 0;
  int64_t input_ns = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint64_t sent_bytes = 0;
  int64_t free_ns = 0;  ///< the plan before ended; equal to begin_ns for the first plan
  WaitTimes wait;
  std::vector<RankSpan> ranks;  // [rank_count - 1] of the ranks after the leader
};

/// One plan with slices, as the head's statistics keep it. Plain data.
struct PlanRecord {
  uint64_t number = 0;  ///< counts the records of a head from 1 without gaps, over all epochs
  RingEpoch epoch;
  PlanId plan;
  int64_t ready_ns = 0;     ///< it could have been made: an output had been sent, or a request had arrived
  int64_t schedule_ns = 0;  ///< the head began to make it
  int64_t sent_ns = 0;
  int64_t output_ns = 0;     ///< its output arrived at the head
  int64_t booked_ns = 0;     ///< the output was booked and delivered
  bool starved = false;      ///< nothing could be scheduled before it although the window had room
  bool after_pause = false;  ///< a request started an empty ring with it
  uint32_t sequences = 0;
  uint32_t prefill_rows = 0;
  uint32_t decode_rows = 0;
  uint32_t in_flight = 0;  ///< plans with slices in flight, this one included
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t free_pages = 0;
  std::vector<StageSpan> stages;  // [stage_count]
};

}  // namespace millrace::sched
