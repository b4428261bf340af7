#pragma once

#include <time.h>

namespace millrace::bench {

/// Returns the seconds of processor time of this thread, which exclude waiting for a core.
inline double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace millrace::bench
