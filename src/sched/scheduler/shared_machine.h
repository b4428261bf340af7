#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::sched {

/// What runs of different stages take from each other that go on at the same time on processors of their own: memory
/// bandwidth, caches, the clock. Work is of two kinds, prompt tokens and the rest. `prompt_by_other`: beside one run
/// that does the rest, prompt tokens take 1 + prompt_by_other times as long as alone.
struct Contention {
  double prompt_by_prompt = 0;
  double prompt_by_other = 0;
  double other_by_prompt = 0;
  double other_by_other = 0;

  /// Of a run with `prompt_share` of its work in prompt tokens, with `neighbours` whose shares have the sum
  /// `prompt_shares`.
  [[nodiscard]] double slowdown(double prompt_share, double neighbours, double prompt_shares) const;
};

/// Runs beside each other are never slower than one after the other.
inline constexpr double kMaxContention = 1;

/// The one machine that all stages of a ring compute on. Plain data; the scheduler finds with it what runs would have
/// taken alone, and the simulator slows them down by it.
struct SharedMachine {
  uint32_t processors = 1;
  uint32_t threads = 1;  ///< that a stage computes with
  Contention contention;

  /// Runs that have all the processors they want at the same time; below 1 when one wants more than there are.
  [[nodiscard]] double full_speed_runs() const { return static_cast<double>(processors) / threads; }
  /// Of the processors that a run wants, what it has while `running` go on, itself included.
  [[nodiscard]] double processor_share(size_t running) const;
  /// Of the `running` − 1 others, how many have processors at the same time as it, on average, as a part of them.
  [[nodiscard]] double overlap_share(size_t running) const;
  /// Runs' worth of decode that `running` of them get done in the time of one alone.
  [[nodiscard]] double parallel_decodes(size_t running) const;
};

}  // namespace millrace::sched
