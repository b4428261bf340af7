#include "sched/stage/run_watchdog.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace millrace::sched {
RunWatchdog::~RunWatchdog() {
  if (timer_) runtime_.disarm(*timer_);
}

void RunWatchdog::begin(Run run) {
  run_ = std::move(run);
  arm();
}

void RunWatchdog::arm() {
  if (timer_ || limit_.count() == 0) return;
  timer_ = runtime_.arm(run_->arrived + limit_, [this] {
    timer_.reset();
    check();
  });
}

// A run whose activations have not come is late at another stage.
void RunWatchdog::check() {
  if (!run_ || (run_->inputs_event && !run_->inputs_event->event.is_set())) return;
  const async::TimePoint now = runtime_.now();
  if (now < run_->arrived + limit_) return arm();
  on_late_(fmt::format("{} has been running plan {} for {:.1f} s, and it came {:.1f} s ago (--watchdog-timeout)", name_,
                       run_->plan.value(), async::to_seconds(now - run_->begun),
                       async::to_seconds(now - run_->arrived)));
}

}  // namespace millrace::sched
