#include "sched/scheduler/queue_policy.h"

#include <algorithm>

#include "sched/scheduler/sequence.h"

namespace millrace::sched {

bool precedes(QueuePolicy policy, const Sequence& a, const Sequence& b) {
  if (policy == QueuePolicy::kFcfs) return false;
  const bool a_overdue = a.bypasses >= kMaxBypasses;
  const bool b_overdue = b.bypasses >= kMaxBypasses;
  if (a_overdue || b_overdue) return a_overdue && !b_overdue;
  if (policy == QueuePolicy::kPriority) return a.request.priority > b.request.priority;
  if (policy == QueuePolicy::kLpm) return a.computed() > b.computed();
  return a.tokens.size() - a.computed() < b.tokens.size() - b.computed();
}

bool outranks(QueuePolicy policy, const Sequence& a, const Sequence& b) {
  return policy == QueuePolicy::kPriority && precedes(policy, a, b);
}

void insert_by_rank(QueuePolicy policy, std::vector<Sequence*>& sequences, Sequence* inserted) {
  const auto before = [policy](const Sequence* a, const Sequence* b) { return outranks(policy, *a, *b); };
  sequences.insert(std::upper_bound(sequences.begin(), sequences.end(), inserted, before), inserted);
}

}  // namespace millrace::sched
