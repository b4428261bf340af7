#include "sched/scheduler/preemptor.h"

#include <algorithm>

namespace millrace::sched {

void Preemptor::make_room_for_next() {
  const QueuePolicy policy = state_.options.policy;
  Sequence* const candidate = policy == QueuePolicy::kPriority ? queue_.next() : nullptr;
  if (candidate == nullptr || admission_.has_room(*candidate)) return;
  const cache::RadixTree::Match& match = queue_.match(*candidate);
  std::vector<Sequence*> victims;  // the lowest rank last
  std::vector<Sequence*> others;
  size_t pages = state_.cache.available_after(match);
  for (Sequence* sequence : state_.running) {
    if (outranks(policy, *candidate, *sequence)) {
      insert_by_rank(policy, victims, sequence);
      pages += state_.cache.exclusively_held(sequence->page_table, match);
    } else {
      others.push_back(sequence);
    }
  }
  if (pages < admission_.pages_needed(*candidate, others) || !admission_.windows_hold(*candidate, others)) return;
  while (!victims.empty() && !admission_.has_room(*candidate)) {
    ++victims.back()->bypasses;
    retract(*victims.back());
    victims.pop_back();
  }
}

bool Preemptor::reserve_page(Sequence& sequence) {
  const size_t wanted = state_.pages_for(sequence.tokens.size());
  while (sequence.page_table.pages.size() < wanted) {
    if (state_.cache.extend(sequence.page_table)) continue;
    if (state_.cache.writing_back()) return false;
    Sequence* const victim = victim_for(sequence);
    if (victim == nullptr) return false;
    retract(*victim);
    admission_.on_retraction();
    if (victim == &sequence) return false;
  }
  // Admission has left room for these: only copies may keep it.
  return state_.cache.extend_windows(sequence.page_table, wanted, sequence.scheduled);
}

// A sequence that is in this very plan, or whose next token is in flight, can't be sent back; the requester waits for
// it rather than go back itself. A prompt between its chunks can be: else its next chunk would go out before its last
// one came back, over and over.
Sequence* Preemptor::victim_for(Sequence& requester) const {
  const QueuePolicy policy = state_.options.policy;
  Sequence* lowest = nullptr;
  bool outranks_someone = false;
  bool is_after_requester = true;  // in order of admission
  for (auto at = state_.running.rbegin(); at != state_.running.rend(); ++at) {
    Sequence* const other = *at;
    if (other == &requester) is_after_requester = false;
    if (other == &requester || outranks(policy, *other, requester) ||
        (!is_after_requester && !outranks(policy, requester, *other))) {
      continue;
    }
    outranks_someone = true;
    const bool is_movable = other->last_planned != state_.turn && (other->in_flight == 0 || other->prefilling());
    if (is_movable && (lowest == nullptr || outranks(policy, *lowest, *other))) lowest = other;
  }
  if (lowest != nullptr || outranks_someone) return lowest;
  // A sequence alone fits, except while copies pin pages, or while the cache keeps second copies of pages that the
  // sequence computed itself: those it finds when it is admitted again.
  const bool waits_for_copies = state_.running.size() == 1 && state_.cache.copies_pin_pages();
  return waits_for_copies ? nullptr : &requester;
}

void Preemptor::retract(Sequence& sequence) {
  queue_.put_back(sequence);
  ++retraction_count_;
}

}  // namespace millrace::sched
