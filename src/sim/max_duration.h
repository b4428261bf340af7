#pragma once

#include "async/runtime.h"

namespace millrace::sim {

/// What nothing in an experiment takes longer than, so that sums of a few stay times: more than its watchdog's.
inline constexpr async::Duration kMaxDuration = std::chrono::hours(1200);

/// The time that a cost comes to, however absurd it is.
inline async::Duration clamped_duration(double ns) {
  return ns < static_cast<double>(kMaxDuration.count()) ? async::Duration(static_cast<int64_t>(ns)) : kMaxDuration;
}

}  // namespace millrace::sim
