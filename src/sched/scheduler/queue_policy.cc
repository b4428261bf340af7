#include "sched/scheduler/queue_policy.h"

#include <algorithm>

namespace millrace::sched {
namespace {

constexpr double kMinRatioPart = 0.14;
constexpr double kPlansToMinRatio = 600;

}  // namespace

bool precedes(QueuePolicy policy, const Sequence& a, const Sequence& b) {
  if (policy == QueuePolicy::kFcfs) return false;
  const bool a_overdue = a.bypasses >= kMaxBypasses;
  const bool b_overdue = b.bypasses >= kMaxBypasses;
  if (a_overdue || b_overdue) return a_overdue && !b_overdue;
  if (policy == QueuePolicy::kPriority) return a.request.priority > b.request.priority;
  if (policy == QueuePolicy::kLongestPrefix) return a.computed() > b.computed();
  return a.tokens.size() - a.computed() < b.tokens.size() - b.computed();
}

std::optional<size_t> next_in_queue(QueuePolicy policy, const std::deque<Sequence*>& queue,
                                    const std::function<bool(const Sequence&)>& ready) {
  std::optional<size_t> next;
  for (size_t index = 0; index < queue.size(); ++index) {
    if (next && !precedes(policy, *queue[index], *queue[*next])) continue;
    if (!ready(*queue[index])) continue;
    next = index;
    if (policy == QueuePolicy::kFcfs) break;
  }
  return next;
}

Sequence& take_from_queue(std::deque<Sequence*>& queue, size_t index) {
  Sequence& taken = *queue.at(index);
  queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(index));
  for (size_t i = 0; i < index; ++i) ++queue[i]->bypasses;
  return taken;
}

void NewTokenRatio::after_plan() {
  const double least = kMinRatioPart * start_;
  ratio_ = std::max(least, ratio_ - (start_ - least) / kPlansToMinRatio);
}

}  // namespace millrace::sched
