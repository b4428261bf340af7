#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "base/enum_names.h"
#include "sched/scheduler/sequence.h"

namespace millrace::sched {

enum class QueuePolicy : uint8_t {
  kFcfs,           ///< first come, first served
  kPriority,       ///< larger GenerateRequest::priority first; may preempt smaller ones
  kShortest,       ///< fewest tokens to prefill first
  kLongestPrefix,  ///< most tokens found in the cache first
};

inline constexpr EnumName<QueuePolicy> kQueuePolicyNames[] = {
    {QueuePolicy::kFcfs, "fcfs"},
    {QueuePolicy::kLongestPrefix, "lpm"},
    {QueuePolicy::kPriority, "priority"},
    {QueuePolicy::kShortest, "shortest"},
};
constexpr std::span<const EnumName<QueuePolicy>> enum_names(QueuePolicy) {
  return kQueuePolicyNames;
}

/// A sequence that has been overtaken so often, in the queue or between its chunks, goes before everyone, whatever the
/// policy: nothing starves.
inline constexpr uint32_t kMaxBypasses = 64;

/// Whether `a` goes before `b` under the policy; neither before the other: the earlier one does.
[[nodiscard]] bool precedes(QueuePolicy policy, const Sequence& a, const Sequence& b);
/// Returns the queue index of the next ready sequence; nothing if none is ready. The queue is in order of
/// arrival.
[[nodiscard]] std::optional<size_t> next_in_queue(QueuePolicy policy, const std::deque<Sequence*>& queue,
                                                  const std::function<bool(const Sequence&)>& ready);
/// Takes the sequence at `index` out of the queue and counts it as a bypass for those before it.
Sequence& take_from_queue(std::deque<Sequence*>& queue, size_t index);

/// Tokens that running requests are expected to draw still, as part of what they may: optimistic the longer nothing had
/// to be retracted, cautious again after a retraction.
class NewTokenRatio {
 public:
  explicit NewTokenRatio(double start) : start_(start), ratio_(start) {}
  [[nodiscard]] double value() const { return ratio_; }
  void after_plan();
  void after_retraction() { ratio_ = start_; }

 private:
  double start_;
  double ratio_;
};

}  // namespace millrace::sched
