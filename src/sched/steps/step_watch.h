#pragma once

#include <cstdint>

#include "async/runtime.h"

namespace millrace::sched {

/// Judges by a ring's steps whether the rings that share experts with it still work: they work in common steps, so a
/// ring that is idle itself counts the steps of the others. Plain data.
class StepWatch {
 public:
  /// `quiet`: a time without steps after which no ring has work. It is longer than any ring takes between two steps.
  explicit StepWatch(async::Duration quiet) : quiet_(quiet) {}

  /// Returns whether some ring may have work. `steps` counts those that have begun here, and `in_flight` says that one
  /// has not ended.
  [[nodiscard]] bool is_active(uint64_t steps, bool in_flight, async::TimePoint now) {
    if (in_flight || !is_begun_ || steps != steps_) since_ = now;
    is_begun_ = true;
    steps_ = steps;
    return now < since_ + quiet_;
  }

 private:
  const async::Duration quiet_;
  bool is_begun_ = false;
  uint64_t steps_ = 0;
  async::TimePoint since_;  // of the last step
};

}  // namespace millrace::sched
