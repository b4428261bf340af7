#pragma once

#include "async/runtime.h"

namespace millrace::sim {

/// The longest duration in an experiment. It exceeds the watchdog's time, and sums of a few do not overflow.
inline constexpr async::Duration kMaxDuration = std::chrono::hours(1200);

/// Returns a cost as a duration of at most kMaxDuration.
inline async::Duration clamped_duration(double ns) {
  return ns < static_cast<double>(kMaxDuration.count()) ? async::Duration(static_cast<int64_t>(ns)) : kMaxDuration;
}

}  // namespace millrace::sim
