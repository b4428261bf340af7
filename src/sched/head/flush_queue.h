#pragma once

#include <vector>

#include "sched/head/control.h"
#include "sched/scheduler/scheduler.h"

namespace millrace::sched {

/// The administrators' flushes of the prefix cache that wait for requests and page copies to end. Owned by the head, on
/// its thread.
class FlushQueue {
 public:
  void add(Flush flush) { flushes_.push_back(std::move(flush)); }
  /// Flushes the scheduler's cache where that is possible, and replies to every flush that is done or past its
  /// deadline.
  void settle(Scheduler& scheduler, async::TimePoint now);
  /// Ends all flushes without a reply.
  void cancel();
  [[nodiscard]] bool empty() const { return flushes_.empty(); }

 private:
  std::vector<Flush> flushes_;  // without a reply so far
};

}  // namespace millrace::sched
