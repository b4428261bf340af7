#include "sched/queue_policy.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::sched {
namespace {

constexpr double kLeastPartOfRatio = 0.14;
constexpr double kPlansToLeast = 600;

}  // namespace

bool goes_before(QueuePolicy policy, const Sequence& a, const Sequence& b) {
  if (policy == QueuePolicy::kFcfs) return false;
  const bool a_overdue = a.bypasses >= kMaxBypasses;
  const bool b_overdue = b.bypasses >= kMaxBypasses;
  if (a_overdue || b_overdue) return a_overdue && !b_overdue;
  if (policy == QueuePolicy::kPriority) return a.request.priority > b.request.priority;
  return a.tokens.size() < b.tokens.size();
}

size_t next_in_queue(QueuePolicy policy, const std::deque<Sequence*>& queue) {
  CHECK(!queue.empty());
  const auto first = std::min_element(queue.begin(), queue.end(), [policy](const Sequence* a, const Sequence* b) {
    return goes_before(policy, *a, *b);
  });
  return static_cast<size_t>(first - queue.begin());
}

Sequence& take_from_queue(std::deque<Sequence*>& queue, size_t place) {
  Sequence& taken = *queue.at(place);
  queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(place));
  for (size_t i = 0; i < place; ++i) ++queue[i]->bypasses;
  return taken;
}

std::optional<QueuePolicy> parse_queue_policy(std::string_view name) {
  if (name == "fcfs") return QueuePolicy::kFcfs;
  if (name == "priority") return QueuePolicy::kPriority;
  if (name == "shortest") return QueuePolicy::kShortest;
  return std::nullopt;
}

void NewTokenRatio::after_plan() {
  const double least = kLeastPartOfRatio * start_;
  ratio_ = std::max(least, ratio_ - (start_ - least) / kPlansToLeast);
}

}  // namespace millrace::sched
