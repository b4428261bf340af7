#include "sched/scheduler/scheduler_state.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace millrace::sched {
namespace {

cache::PrefixCacheOptions cache_options(const SchedulerOptions& options) {
  return {.page_size = options.page_size,
          .page_count = options.page_count,
          .share_prefixes = options.share_prefixes,
          .host_page_count = options.host_page_count,
          .has_store = options.has_store,
          .write_policy = options.write_policy,
          .windows = window_pools(options, first_pools(options)),
          .snapshot_pages = options.snapshot_pages,
          .first_copy_id = options.first_copy_id};
}

void check_slots(const SchedulerState& state) {
  std::vector<bool> taken(state.options.max_running);
  const auto take = [&taken](SlotId slot) {
    CHECK(!taken[slot.value()], "slot {} is in use twice", slot.value());
    taken[slot.value()] = true;
  };
  for (const SlotId slot : state.free_slots) take(slot);
  for (const Sequence* sequence : state.running) {
    CHECK(sequence->running && sequence->scheduled <= sequence->tokens.size());
    take(sequence->slot);
  }
  CHECK(state.running.size() + state.free_slots.size() == state.options.max_running, "{} slots in use, {} free, of {}",
        state.running.size(), state.free_slots.size(), state.options.max_running);
}

void check_pages(const SchedulerState& state) {
  std::vector<const cache::PageTable*> holders;
  for (const Sequence* sequence : state.running) holders.push_back(&sequence->page_table);
  for (const Sequence* sequence : state.waiting) {
    CHECK(sequence->page_table.pages.empty() && sequence->page_table.windows.empty() && !sequence->running);
  }
  state.cache.check_invariants(holders);
  const auto prefetching = static_cast<size_t>(
      std::ranges::count_if(state.waiting, [&](const auto* one) { return state.cache.prefetching(one->id); }));
  CHECK(state.cache.wanted_prefetches() <= prefetching, "{} prefetches are wanted, for {} waiting sequences",
        state.cache.wanted_prefetches(), prefetching);
}

// A decode step waits for the token before it, so that only the last slice of a sequence in flight samples.
void check_in_flight(const SchedulerState& state) {
  CHECK(state.in_flight.size() <= state.options.window, "{} plans in flight in a window of {}", state.in_flight.size(),
        state.options.window);
  struct LastSlice {
    uint32_t count = 0;
    uint32_t end = 0;
    bool samples = false;
  };
  std::unordered_map<SequenceId, LastSlice> last_slices;
  for (const InFlightPlan& plan : state.in_flight) {
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlanSlice& slice = plan.slices[i];
      LastSlice& last = last_slices[plan.sequences[i]];
      CHECK(last.count == 0 || (slice.prefix == last.end && !last.samples),
            "sequence {}: a slice at {} after one that ends at {}", plan.sequences[i].value(), slice.prefix, last.end);
      last = {last.count + 1, slice.prefix + slice.token_count - slice.draft_count, slice.sample};
    }
  }
  for (const auto& [id, sequence] : state.sequences) {
    const LastSlice last = last_slices[id];
    CHECK(sequence->in_flight == last.count, "sequence {} is in {} plans in flight, noted {}", id.value(), last.count,
          sequence->in_flight);
    CHECK(!sequence->running || last.count == 0 || last.end == sequence->scheduled);
  }
}

}  // namespace

SchedulerState::SchedulerState(const SchedulerOptions& scheduler_options)
    : options(scheduler_options), cache(cache_options(scheduler_options)) {
  CHECK(options.page_size > 0 && options.max_running > 0 && options.window > 0 && options.chunked_prefill_size > 0);
  const uint64_t token_room = uint64_t{options.page_count} * options.page_size;
  CHECK(options.context_length <= token_room, "a context of {} tokens, the pages hold {}", options.context_length,
        token_room);
  for (uint32_t slot = options.max_running; slot-- > 0;) free_slots.emplace_back(slot);
}

bool SchedulerState::keeps_states() const {
  return std::ranges::any_of(cache.windows(), [](const auto& group) { return group->has_states(); });
}

Sequence* SchedulerState::find(SequenceId id) const {
  const auto found = sequences.find(id);
  return found == sequences.end() ? nullptr : found->second.get();
}

// Pages and slot are free at once, though plans in flight still use them: every stage runs plans in order, so their
// next user comes later.
void SchedulerState::release(Sequence& sequence) {
  if (!sequence.running) return;
  cache.publish(sequence.page_table, std::span(sequence.tokens).first(sequence.scheduled));
  cache.release(sequence.page_table);
  sequence.sent_pages = 0;
  sequence.table_digest = 0;
  sequence.sent_windows.clear();
  sequence.scheduled = 0;
  sequence.replayed = 0;
  sequence.last_target_us = 0;
  sequence.running = false;
  closed_slots.push_back(sequence.slot);
  free_slots.push_back(sequence.slot);
  std::erase(running, &sequence);
}

void SchedulerState::remove(Sequence& sequence) {
  release(sequence);
  cache.stop_prefetch(sequence.id);
  std::erase(waiting, &sequence);
  sequences.erase(sequence.id);
}

void SchedulerState::add_in_flight(InFlightPlan plan) {
  in_flight.push_back(std::move(plan));
  ++plan_count;
}

std::vector<SequenceId> SchedulerState::forget_ring() {
  std::vector<SequenceId> ended;
  for (const Sequence* sequence : running) ended.push_back(sequence->id);
  std::ranges::sort(ended);
  for (const SequenceId id : ended) remove(*find(id));
  cache.on_ring_lost();
  for (Sequence* sequence : waiting) {
    sequence->in_flight = 0;
    sequence->drafts.clear();
  }
  in_flight.clear();
  closed_slots.clear();
  plan_count = 0;
  CHECK(free_slots.size() == options.max_running, "{} of {} slots are free without a ring", free_slots.size(),
        options.max_running);
  CHECK(cache.available_pages() == cache.page_count(), "{} of {} pages are free without a ring",
        cache.available_pages(), cache.page_count());
  return ended;
}

std::vector<SequenceId> SchedulerState::resize(cache::PoolSizes pages) {
  CHECK(running.empty() && in_flight.empty(), "the pools are resized while {} sequences run and {} plans are in flight",
        running.size(), in_flight.size());
  const uint64_t capacity = uint64_t{pages.device} * options.page_size;
  const uint32_t max_context = std::max(options.max_context_length, options.context_length);
  options.max_context_length = max_context;
  options.context_length = static_cast<uint32_t>(std::min<uint64_t>(max_context, capacity));
  options.page_count = pages.device;
  options.host_page_count = pages.host;
  options.window_sequences = pages.sequences;
  cache.resize(pages, window_pools(options, pages));
  std::vector<SequenceId> ended;
  for (const Sequence* sequence : waiting) {
    if (sequence->tokens.size() > max_prompt_length(sequence->request, options.context_length)) {
      ended.push_back(sequence->id);
    }
  }
  std::ranges::sort(ended);
  for (const SequenceId id : ended) remove(*find(id));
  return ended;
}

void SchedulerState::check_invariants() const {
  check_pages(*this);
  check_slots(*this);
  CHECK(running.size() + waiting.size() == sequences.size(), "{} sequences run and {} wait, of {}", running.size(),
        waiting.size(), sequences.size());
  check_in_flight(*this);
}

}  // namespace millrace::sched
