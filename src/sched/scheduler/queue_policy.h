#pragma once

#include <cstdint>
#include <vector>

#include "base/enum_names.h"

namespace millrace::sched {

struct Sequence;

/// The order in which waiting requests are admitted. Requests that are equal under it keep the order of arrival.
enum class QueuePolicy : uint8_t {
  kFcfs,      ///< first come, first served
  kPriority,  ///< larger GenerateRequest::priority first; may preempt running requests of smaller priority
  kShortest,  ///< fewest tokens to prefill first
  kLpm,       ///< most cached tokens first
};

inline constexpr EnumName<QueuePolicy> kQueuePolicyNames[] = {
    {QueuePolicy::kFcfs, "fcfs"},
    {QueuePolicy::kLpm, "lpm"},
    {QueuePolicy::kPriority, "priority"},
    {QueuePolicy::kShortest, "shortest"},
};
constexpr std::span<const EnumName<QueuePolicy>> enum_names(QueuePolicy) {
  return kQueuePolicyNames;
}

/// The number of bypasses after which a sequence goes first under every policy, so that none starves.
inline constexpr uint32_t kMaxBypasses = 64;

/// Returns whether `a` goes before `b` under the policy.
[[nodiscard]] bool precedes(QueuePolicy policy, const Sequence& a, const Sequence& b);
/// Returns whether `a` may take the pages or slot of `b`. False under every policy but kPriority.
[[nodiscard]] bool outranks(QueuePolicy policy, const Sequence& a, const Sequence& b);
/// Inserts a sequence after those that it does not outrank. `sequences` is in order of rank, the highest first.
void insert_by_rank(QueuePolicy policy, std::vector<Sequence*>& sequences, Sequence* inserted);

}  // namespace millrace::sched
