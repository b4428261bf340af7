#include "sched/scheduler/waiting_queue.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace millrace::sched {
namespace {

constexpr size_t kMatchesPerTurn = 16;

}  // namespace

Result<void> WaitingQueue::admissible(const GenerateRequest& request) const {
  const SchedulerOptions& options = state_.options;
  return check_request(request, {.context_length = options.context_length,
                                 .vocab_size = options.vocab_size,
                                 .has_output_head = options.has_output_head});
}

void WaitingQueue::add(std::unique_ptr<Sequence> sequence) {
  const SequenceId id = sequence->id;
  state_.waiting.push_back(sequence.get());
  prefetch(*sequence);
  const bool inserted = state_.sequences.emplace(id, std::move(sequence)).second;
  CHECK(inserted, "sequence {} added twice", id.value());
}

// Its prompt's scores are lost with the plans in flight that it leaves: they are computed again.
void WaitingQueue::put_back(Sequence& sequence) {
  state_.release(sequence);
  sequence.prompt_logprobs.clear();
  state_.waiting.push_front(&sequence);
}

void WaitingQueue::take(Sequence& sequence) {
  const auto taken = std::ranges::find(state_.waiting, &sequence);
  for (auto other = state_.waiting.begin(); other != taken; ++other) ++(*other)->bypasses;
  state_.waiting.erase(taken);
}

void WaitingQueue::prefetch(Sequence& sequence) {
  if (sequence.needs_all_rows() || state_.cache.verifying()) return;
  state_.cache.prefetch(sequence.id, sequence.request.cache_salt, sequence.reusable_tokens(), sequence.page_table);
  sequence.awaits_prefetch = state_.options.prefetch_policy != PrefetchPolicy::kBestEffort;
}

void WaitingQueue::prefetch_all() {
  for (Sequence* sequence : state_.waiting) prefetch(*sequence);
}

void WaitingQueue::stop_prefetch_wait(SequenceId id) {
  if (Sequence* const sequence = state_.find(id)) sequence->awaits_prefetch = false;
}

Sequence* WaitingQueue::next() const {
  const QueuePolicy policy = state_.options.policy;
  Sequence* next = nullptr;
  for (Sequence* sequence : state_.waiting) {
    if (next != nullptr && !precedes(policy, *sequence, *next)) continue;
    if (!is_ready(*sequence)) continue;
    next = sequence;
    if (policy == QueuePolicy::kFcfs) break;
  }
  return next;
}

std::vector<Sequence*> WaitingQueue::order_with(Sequence& newcomer) const {
  std::vector<Sequence*> arrivals(state_.waiting.begin(), state_.waiting.end());
  arrivals.push_back(&newcomer);
  const QueuePolicy policy = state_.options.policy;
  std::vector<size_t> indices(arrivals.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  std::ranges::sort(indices, [&](size_t a, size_t b) {
    if (precedes(policy, *arrivals[a], *arrivals[b])) return true;
    return a < b && !precedes(policy, *arrivals[b], *arrivals[a]);
  });
  std::vector<Sequence*> order;
  order.reserve(arrivals.size());
  for (const size_t index : indices) order.push_back(arrivals[index]);
  return order;
}

const cache::RadixTree::Match& WaitingQueue::match(Sequence& sequence) const {
  if (sequence.match_version == state_.cache.version()) return sequence.match;
  sequence.match_version = state_.cache.version();
  sequence.match = {};
  if (!sequence.needs_all_rows()) {
    sequence.match = state_.cache.match(sequence.request.cache_salt, sequence.reusable_tokens());
  }
  sequence.match_tokens = sequence.match.pages * state_.options.page_size;
  return sequence.match;
}

void WaitingQueue::refresh_matches() const {
  const std::deque<Sequence*>& waiting = state_.waiting;
  const size_t count = std::min(waiting.size(), kMatchesPerTurn);
  for (size_t i = 0; i < count; ++i) (void)match(*waiting[(state_.turn * kMatchesPerTurn + i) % waiting.size()]);
}

}  // namespace millrace::sched
