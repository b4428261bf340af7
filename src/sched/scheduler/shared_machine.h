#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::sched {

/// The slowdown of stages that run at the same time on processors of their own: they share memory bandwidth, caches and
/// the clock. Work is of two kinds, prompt tokens and the rest. `prompt_by_other`: with one neighbour that does the
/// rest, prompt tokens take 1 + prompt_by_other times as long as alone.
struct Contention {
  double prompt_by_prompt = 0;
  double prompt_by_other = 0;
  double other_by_prompt = 0;
  double other_by_other = 0;

  /// Returns how many times longer a run takes than alone. `prompt_share`: its share of prompt tokens; `prompt_shares`:
  /// the sum of its neighbours' shares.
  [[nodiscard]] double slowdown(double prompt_share, double neighbours, double prompt_shares) const;
};

/// Bound of each term: two runs at the same time are never slower than one after the other.
inline constexpr double kMaxContention = 1;

/// The one machine that all stages of a ring compute on. With it the scheduler estimates what runs would have taken
/// alone, and the simulator slows them down. Plain data.
struct SharedMachine {
  uint32_t processors = 1;
  uint32_t threads = 1;  ///< compute threads of one stage
  Contention contention;

  /// Returns the runs that have all processors they want at the same time; below 1 if one wants more than there are.
  [[nodiscard]] double full_speed_runs() const { return static_cast<double>(processors) / threads; }
  /// Returns the share of the processors it wants that a run has while `running` runs go on, itself included.
  [[nodiscard]] double processor_share(size_t running) const;
  /// Returns the average share of the `running` − 1 other runs that have processors at the same time as one run.
  [[nodiscard]] double overlap_share(size_t running) const;
  /// Returns the decode runs that `running` stages finish together in the time of one run alone.
  [[nodiscard]] double parallel_decodes(size_t running) const;
};

}  // namespace millrace::sched
