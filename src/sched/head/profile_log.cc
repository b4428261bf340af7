#include "sched/head/profile_log.h"

#include <chrono>

#include "base/log.h"

namespace millrace::sched {
void ProfileLog::ring_attached(async::TimePoint now) {
  begin_ = now;
  contention_begin_.reset();
}

void ProfileLog::output_arrived(const Scheduler& scheduler, async::TimePoint now) {
  last_output_ = now;
  was_profiling_ = scheduler.profiling();
  if (!contention_begin_ && scheduler.profiling_contention()) contention_begin_ = now;
}

bool ProfileLog::output_booked(const Scheduler& scheduler) const {
  if (!was_profiling_ || scheduler.profiling()) return false;
  const double whole_s = async::to_seconds(last_output_ - begin_);
  if (!contention_begin_) {
    log::info("the stages have been timed in {:.1f} s", whole_s);
    return true;
  }
  const Contention found = scheduler.contention();
  log::info(
      "the stages have been timed in {:.1f} s, {:.1f} s of it while others compute: contention {:.2f} prompt by "
      "prompt, "
      "{:.2f} prompt by other, {:.2f} other by prompt, {:.2f} other by other",
      whole_s, async::to_seconds(last_output_ - *contention_begin_), found.prompt_by_prompt, found.prompt_by_other,
      found.other_by_prompt, found.other_by_other);
  return true;
}

}  // namespace millrace::sched
