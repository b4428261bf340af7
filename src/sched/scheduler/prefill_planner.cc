#include "sched/scheduler/prefill_planner.h"

namespace millrace::sched {
namespace {

/// Short prompts may take this part of a plan's prompt tokens before the long prompt whose turn it is.
constexpr uint32_t kShortPromptPart = 4;

Chunker::Prompt prompt_of(const Sequence& sequence) {
  const uint32_t prefix = sequence.computed();
  return {prefix, static_cast<uint32_t>(sequence.tokens.size()) - prefix, sequence.last_target_us};
}

}  // namespace

void PrefillPlanner::plan() {
  BatchShape decodes;
  for (const PlanSlice& slice : builder_.slices()) decodes.add(slice);
  chunker_.begin(decodes, chunker_.is_balanced() ? backlog() : std::vector<uint32_t>());
  const std::vector<Sequence*> begun = partial_prompts();
  add_short_prompts(begun);
  for (Sequence* sequence : begun) {
    while (add_first_chunk(sequence)) {
    }
    // A short prompt has ridden along already.
    if (sequence->prefilling() && !add_chunk(*sequence)) return;
  }
  while (add_first_chunk(nullptr)) {
  }
}

std::vector<uint32_t> PrefillPlanner::backlog() const {
  std::vector<uint32_t> lengths;
  lengths.reserve(state_.running.size() + state_.waiting.size());
  for (const Sequence* sequence : state_.running) {
    if (sequence->prefilling()) lengths.push_back(static_cast<uint32_t>(sequence->tokens.size()));
  }
  for (const Sequence* sequence : state_.waiting) lengths.push_back(prompt_of(*sequence).left);
  return lengths;
}

std::vector<Sequence*> PrefillPlanner::partial_prompts() const {
  std::vector<Sequence*> begun;
  for (Sequence* sequence : state_.running) {
    if (sequence->prefilling()) insert_by_rank(state_.options.policy, begun, sequence);
  }
  return begun;
}

void PrefillPlanner::add_short_prompts(const std::vector<Sequence*>& begun) {
  uint32_t budget = state_.options.chunked_prefill_size / kShortPromptPart;
  if (begun.empty() || begun.front()->unscheduled() <= budget) return;
  for (Sequence* sequence : begun) {
    const bool fits = chunker_.fits_whole(prompt_of(*sequence), budget);
    if (fits && extend_windows(*sequence, sequence->unscheduled())) budget -= add_whole(*sequence);
  }
  if (state_.free_slots.empty()) return;
  queue_.refresh_matches();
  admit_short_prompts(budget);
}

// Each admission out of turn is a bypass for those before it, and one that has been bypassed too often lets nobody
// past.
void PrefillPlanner::admit_short_prompts(uint32_t budget) {
  // Most candidates don't fit by their last known match, so that only the others are looked up again.
  const auto fits = [&](Sequence& candidate) {
    if (!chunker_.fits_whole(prompt_of(candidate), budget)) return false;
    (void)queue_.match(candidate);
    return chunker_.fits_whole(prompt_of(candidate), budget);
  };
  for (size_t index = 0; index < state_.waiting.size() && budget > 0;) {
    Sequence& candidate = *state_.waiting[index];
    const bool is_ready = queue_.is_ready(candidate);
    if (is_ready && candidate.in_flight == 0 && fits(candidate)) {
      if (!admission_.admit(candidate, prompt_of(candidate).left)) return;
      budget -= add_whole(candidate);
      continue;
    }
    if (is_ready && candidate.bypasses >= kMaxBypasses) return;
    ++index;
  }
}

uint32_t PrefillPlanner::add_whole(Sequence& sequence) {
  const uint32_t count = sequence.unscheduled();
  chunker_.add_short(prompt_of(sequence));
  builder_.add_slice(sequence, count);
  return count;
}

// Returns false if the queue's next sequence can't begin now. Before a begun prompt it may only if it outranks it.
bool PrefillPlanner::add_first_chunk(const Sequence* before) {
  const QueuePolicy policy = state_.options.policy;
  if (before != nullptr && policy != QueuePolicy::kPriority) return false;
  Sequence* const candidate = queue_.next();
  if (candidate == nullptr || (before != nullptr && !outranks(policy, *candidate, *before))) return false;
  (void)queue_.match(*candidate);
  // A retracted sequence waits until the outputs of its earlier slices have come back.
  const uint32_t count = chunker_.chunk_tokens(prompt_of(*candidate));
  if (count == 0 || candidate->in_flight > 0) return false;
  return admission_.admit(*candidate, count) && add_chunk(*candidate);
}

// Returns false while the window pages of the sequence's next tokens wait for copies.
bool PrefillPlanner::extend_windows(Sequence& sequence, uint32_t count) {
  const size_t page_count = state_.pages_for(sequence.scheduled + count);
  return state_.cache.extend_windows(sequence.page_table, page_count, sequence.scheduled);
}

bool PrefillPlanner::add_chunk(Sequence& sequence) {
  const Chunker::Prompt prompt = prompt_of(sequence);
  const uint32_t count = chunker_.chunk_tokens(prompt);
  if (count == 0 || !extend_windows(sequence, count)) return false;
  sequence.last_target_us = chunker_.target_us(prompt);
  chunker_.add_chunk(prompt, count);
  builder_.add_slice(sequence, count);
  return true;
}

}  // namespace millrace::sched
