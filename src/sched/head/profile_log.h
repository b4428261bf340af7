#pragma once

#include <optional>

#include "async/runtime.h"
#include "sched/scheduler/scheduler.h"

namespace millrace::sched {

/// Logs how long the scheduler timed the stages of a new ring, and what it found. Owned by the head, on its thread.
class ProfileLog {
 public:
  void ring_attached(async::TimePoint now);
  /// Notes an output that arrived at `now`. Called before the scheduler books it.
  void output_arrived(const Scheduler& scheduler, async::TimePoint now);
  /// Returns whether this output ended the profile, which is logged then. Called after the scheduler has booked it.
  [[nodiscard]] bool output_booked(const Scheduler& scheduler) const;

 private:
  async::TimePoint begin_;
  async::TimePoint last_output_;
  std::optional<async::TimePoint> contention_begin_;  // when the stages began to be timed at the same time
  bool was_profiling_ = false;                        // before the last output
};

}  // namespace millrace::sched
