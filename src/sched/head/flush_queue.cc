#include "sched/head/flush_queue.h"

#include <chrono>
#include <utility>

namespace millrace::sched {
namespace {

/// Page copies end by themselves and soon, unless a store hangs: a flush waits for them past its deadline.
constexpr async::Duration kCopyTimeout = std::chrono::seconds(5);

}  // namespace

void FlushQueue::settle(Scheduler& scheduler, async::TimePoint now) {
  std::vector<Flush> waiting;
  for (Flush& flush : flushes_) {
    if (flush.reply.closed()) continue;  // its caller waits no longer
    if (scheduler.flush_cache()) {
      (void)flush.reply.try_push({});
    } else if (!scheduler.empty() && now >= flush.deadline) {
      (void)flush.reply.try_push(make_error(ErrorCode::kConflict, "{} requests run and {} wait",
                                            scheduler.running_count(), scheduler.waiting_count()));
    } else if (now >= flush.deadline + kCopyTimeout) {
      (void)flush.reply.try_push(Error{ErrorCode::kConflict, "pages are still being copied between the tiers"});
    } else {
      waiting.push_back(std::move(flush));
    }
  }
  flushes_ = std::move(waiting);
}

void FlushQueue::cancel() {
  for (const Flush& flush : flushes_) flush.reply.close();
  flushes_.clear();
}

}  // namespace millrace::sched
