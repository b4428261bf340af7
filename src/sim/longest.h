#pragma once

#include "async/runtime.h"

namespace millrace::sim {

/// What nothing in an experiment takes longer than, so that sums of a few stay times: more than its watchdog's.
inline constexpr async::Duration kLongest = std::chrono::hours(1200);

/// The time that a cost comes to, however absurd it is.
inline async::Duration bounded_time(double ns) {
  return ns < static_cast<double>(kLongest.count()) ? async::Duration(static_cast<int64_t>(ns)) : kLongest;
}

}  // namespace millrace::sim
