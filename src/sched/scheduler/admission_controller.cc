#include "sched/scheduler/admission_controller.h"

#include <algorithm>
#include <vector>

#include "sched/scheduler/pool_room.h"

namespace millrace::sched {
namespace {

/// The tokens that a sequence is expected to generate at most: few requests use up a large max_tokens.
constexpr uint64_t kMaxExpectedTokens = 4096;

}  // namespace

uint64_t AdmissionController::max_new_tokens(const Sequence& sequence) const {
  const uint64_t wanted = sequence.request.max_tokens - std::min(sequence.request.max_tokens, sequence.output_count());
  return std::min({wanted, uint64_t{state_.options.context_length} - sequence.tokens.size(), kMaxExpectedTokens});
}

void AdmissionController::add_window_pages(const Sequence& sequence, std::vector<size_t>& pages) const {
  const SchedulerOptions& options = state_.options;
  const uint64_t longest =
      std::min<uint64_t>(options.context_length, uint64_t{sequence.tokens.size()} + sequence.request.max_tokens);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] += running_window_pages(options, options.windows[i], longest);
}

bool AdmissionController::windows_hold(std::span<const size_t> pages) const {
  for (size_t i = 0; i < pages.size(); ++i) {
    const size_t wanted = pages[i] + prompt_window_pages(state_.options, state_.options.windows[i]);
    if (wanted > state_.cache.windows()[i]->account().pool().page_count()) return false;
  }
  return true;
}

bool AdmissionController::windows_hold(const Sequence& candidate, std::span<Sequence* const> others) const {
  if (others.empty()) return true;
  std::vector<size_t> pages(state_.options.windows.size());
  add_window_pages(candidate, pages);
  for (const Sequence* sequence : others) add_window_pages(*sequence, pages);
  return windows_hold(pages);
}

// Pages for what a candidate and `others` are expected to generate, with one page of each other that is not full.
size_t AdmissionController::expected_pages(uint64_t new_tokens, size_t others) const {
  if (others == 0) return 0;
  const auto expected = static_cast<size_t>(new_token_ratio_.value() * static_cast<double>(new_tokens));
  return state_.pages_for(expected) + others;
}

size_t AdmissionController::pages_needed(Sequence& candidate, std::span<Sequence* const> others) const {
  const size_t own = state_.pages_for(candidate.tokens.size()) - queue_.match(candidate).device_pages;
  uint64_t new_tokens = max_new_tokens(candidate);
  for (const Sequence* sequence : others) new_tokens += max_new_tokens(*sequence);
  return own + expected_pages(new_tokens, others.size());
}

size_t AdmissionController::count_with_room(std::span<Sequence* const> candidates) const {
  const size_t limit = std::min(candidates.size(), state_.free_slots.size());
  const size_t available = state_.cache.available_pages();
  size_t pages = 0;
  uint64_t new_tokens = 0;
  for (const Sequence* sequence : state_.running) new_tokens += max_new_tokens(*sequence);
  std::vector<size_t> window_pages(state_.options.windows.size());
  for (const Sequence* sequence : state_.running) add_window_pages(*sequence, window_pages);
  std::vector<cache::NodeId> prefixes;  // whose unused pages are in `pages`
  for (size_t count = 0; count < limit; ++count) {
    Sequence& candidate = *candidates[count];
    const cache::RadixTree::Match& match = queue_.match(candidate);
    pages += state_.pages_for(candidate.tokens.size()) - match.device_pages;
    if (std::ranges::find(prefixes, match.device_node) == prefixes.end()) {
      prefixes.push_back(match.device_node);
      pages += available - state_.cache.available_after(match);
    }
    new_tokens += max_new_tokens(candidate);
    if (pages + expected_pages(new_tokens, state_.running.size() + count) > available) return count;
    add_window_pages(candidate, window_pages);
    if (state_.running.size() + count > 0 && !windows_hold(window_pages)) return count;
  }
  return limit;
}

bool AdmissionController::has_room(Sequence& candidate) const {
  if (state_.free_slots.empty() || !windows_hold(candidate, state_.running)) return false;
  const size_t wanted = pages_needed(candidate, state_.running);
  const size_t available = state_.cache.available_pages();
  // available_after() walks the match: it is called only if its result matters.
  const cache::RadixTree::Match& match = queue_.match(candidate);
  return available >= wanted + match.device_pages ||
         (available >= wanted && state_.cache.available_after(match) >= wanted);
}

bool AdmissionController::has_room_for_next() const {
  Sequence* const next = queue_.next();
  return next != nullptr && has_room(*next);
}

bool AdmissionController::admit(Sequence& candidate, uint32_t slice_tokens) {
  if (!has_room(candidate) || !builder_.can_open(candidate)) return false;
  const cache::RadixTree::Match match = queue_.match(candidate);
  // Stages run the slices of a plan at once, so that none of them finds a state that another one leaves.
  if (state_.cache.is_fresh(match)) return false;
  const size_t page_count = state_.pages_for(candidate.tokens.size());
  const size_t window_pages = state_.pages_for(size_t{match.pages} * state_.options.page_size + slice_tokens);
  if (!state_.cache.acquire(candidate.page_table, candidate.request.cache_salt, match, page_count, window_pages)) {
    return false;
  }
  state_.cache.stop_prefetch(candidate.id);
  queue_.take(candidate);
  // Prompts of smaller priority between their chunks are overtaken as well.
  for (Sequence* other : state_.running) {
    if (other->prefilling() && outranks(state_.options.policy, candidate, *other)) ++other->bypasses;
  }
  candidate.running = true;
  candidate.slot = state_.free_slots.back();
  state_.free_slots.pop_back();
  state_.running.push_back(&candidate);
  candidate.scheduled = match.pages * state_.options.page_size;
  if (!candidate.cached_tokens) candidate.cached_tokens = candidate.scheduled;
  builder_.open(candidate);
  return true;
}

}  // namespace millrace::sched
