#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sched/scheduler/scheduler_state.h"

namespace millrace::sched {

/// The requests that wait for admission: which of them is next, and what they would find in the cache. It works on
/// SchedulerState::waiting. A sequence's match is looked up again only after the cache has changed. Part of Scheduler,
/// with its thread and lifetime.
class WaitingQueue {
 public:
  explicit WaitingQueue(SchedulerState& state) : state_(state) {}

  /// Returns check_request() with the limits as they are now.
  [[nodiscard]] Result<void> admissible(const GenerateRequest& request) const;
  /// Appends a request that `admissible` accepted, and starts its prefetch.
  void add(SequenceId id, GenerateRequest request) { add(make_sequence(id, std::move(request))); }
  void add(std::unique_ptr<Sequence> sequence);
  /// Takes slot and pages from a running sequence and puts it before all others.
  void put_back(Sequence& sequence);
  /// Removes a sequence from the queue and counts a bypass for those before it.
  void take(Sequence& sequence);

  /// Starts the prefetches of all sequences, after a time in which the cache could not match.
  void prefetch_all();
  /// Lets a sequence be admitted before its prefetch has ended. Unknown ids are ignored.
  void stop_prefetch_wait(SequenceId id);
  /// Returns whether the admission of the sequence waits for its prefetch.
  [[nodiscard]] bool awaits_prefetch(const Sequence& sequence) const {
    return sequence.awaits_prefetch && state_.cache.prefetching(sequence.id);
  }
  /// Returns whether the sequence may be admitted. A retracted one may still await its token mask.
  [[nodiscard]] bool is_ready(const Sequence& sequence) const {
    return !awaits_prefetch(sequence) && !sequence.awaits_mask();
  }

  /// Returns the sequence that the policy admits next, or null if none is ready.
  [[nodiscard]] Sequence* next() const;
  /// Returns the waiting sequences and `newcomer`, which arrives after them, in the order of their admission.
  [[nodiscard]] std::vector<Sequence*> order_with(Sequence& newcomer) const;
  /// Returns the longest cached prefix of the sequence, as of now.
  const cache::RadixTree::Match& match(Sequence& sequence) const;
  /// Looks up a few sequences' prefixes, others each turn: all of them each turn would cost too much.
  void refresh_matches() const;

 private:
  void prefetch(Sequence& sequence);

  SchedulerState& state_;
};

}  // namespace millrace::sched
