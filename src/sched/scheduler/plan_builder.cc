#include "sched/scheduler/plan_builder.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace millrace::sched {
namespace {

/// Bytes of a plan's message that opens may take; a sequence alone may take more.
constexpr size_t kMaxOpenBytes = size_t{8} << 20;

/// Returns the tokens that penalties of the sampling need to know, of those that are not in the plan.
size_t history_tokens(const Sequence& sequence) {
  return sequence.request.sampling.needs_history() ? sequence.computed() : 0;
}

/// Returns how the last stage pools the next slice of a sequence.
SlicePooling slice_pooling(const Sequence& sequence, bool is_last_chunk) {
  switch (sequence.request.pooling) {
    case Pooling::kNone: break;
    case Pooling::kFirst: return sequence.scheduled == 0 ? SlicePooling::kFirstRow : SlicePooling::kNone;
    case Pooling::kLast: return is_last_chunk ? SlicePooling::kLastRow : SlicePooling::kNone;
    case Pooling::kMean: return is_last_chunk ? SlicePooling::kMean : SlicePooling::kSum;
  }
  return SlicePooling::kNone;
}

/// Returns the bytes of an open that grow with its request.
size_t open_bytes(const Sequence& sequence) {
  const tensor::SamplingParams& sampling = sequence.request.sampling;
  return sizeof(TokenId) * (history_tokens(sequence) + sampling.stop_token_ids.size()) +
         (sizeof(TokenId) + sizeof(float)) * sampling.logit_bias.size();
}

}  // namespace

PlanBuilder::PlanBuilder(SchedulerState& state) : state_(state), masks_(state.options.max_running) {}

void PlanBuilder::begin() {
  state_.cache.end_plan();
  plan_ = {};
  plan_.windows.resize(state_.options.windows.size());
  sequences_.clear();
  open_bytes_ = 0;
  draft_rows_ = 0;
}

bool PlanBuilder::can_open(const Sequence& sequence) const {
  return open_bytes_ == 0 || open_bytes_ + open_bytes(sequence) <= kMaxOpenBytes;
}

void PlanBuilder::open(const Sequence& sequence) {
  SequenceOpen open{.slot = sequence.slot,
                    .prompt_length = sequence.prompt_length,
                    .cached_length = sequence.scheduled,
                    .history = {},
                    .sampling = sequence.request.sampling};
  open.history.assign(sequence.tokens.begin(), sequence.tokens.begin() + history_tokens(sequence));
  plan_.opens.push_back(std::move(open));
  open_bytes_ += open_bytes(sequence);
}

void PlanBuilder::add_slice(Sequence& sequence, uint32_t token_count) {
  const uint32_t begin = sequence.scheduled;
  const uint32_t end = begin + token_count;
  const bool is_last_chunk = end == sequence.tokens.size();
  const bool ends_prompt = is_last_chunk && sequence.prefilling();
  const std::span<const PageId> new_pages = std::span(sequence.page_table.pages).subspan(sequence.sent_pages);
  const auto draft_count = static_cast<uint32_t>(sequence.drafts.size());
  PlanSlice slice{.slot = sequence.slot,
                  .prefix = begin,
                  .token_count = token_count + draft_count,
                  .new_page_count = static_cast<uint32_t>(new_pages.size()),
                  .sample = is_last_chunk && sequence.request.max_tokens > 0,
                  .draft_count = draft_count,
                  .replay_count = sequence.replayed,
                  .pooling = slice_pooling(sequence, is_last_chunk),
                  .second_text = sequence.request.second_text};
  if (slice.sample) add_sample_masks(sequence);
  if (sequence.wants_prompt_logprobs()) {
    slice.prompt_top_logprobs = sequence.request.prompt_top_logprobs;
    slice.next_token = is_last_chunk ? -1 : sequence.tokens[end];
  }
  plan_.slices.push_back(slice);
  plan_.tokens.insert(plan_.tokens.end(), sequence.tokens.begin() + begin, sequence.tokens.begin() + end);
  for (const Draft& draft : sequence.drafts) plan_.tokens.push_back(draft.token);
  plan_.new_pages.insert(plan_.new_pages.end(), new_pages.begin(), new_pages.end());
  for (const PageId page : new_pages) sequence.table_digest = table_digest(sequence.table_digest, page);
  plan_.digest = plan_digest(plan_.digest, slice, sequence.table_digest);
  add_window_pages(sequence);
  sequence.sent_pages += slice.new_page_count;
  sequence.scheduled = end;
  draft_rows_ += draft_count + std::exchange(sequence.replayed, 0);
  state_.cache.publish(sequence.page_table, std::span(sequence.tokens).first(end), ends_prompt);
  sequence.last_planned = state_.turn;
  ++sequence.in_flight;
  sequences_.push_back(sequence.id);
}

void PlanBuilder::add_window_pages(Sequence& sequence) {
  sequence.sent_windows.resize(plan_.windows.size());
  for (size_t i = 0; i < plan_.windows.size(); ++i) {
    const cache::WindowTable& table = sequence.page_table.windows[i];
    Sequence::SentWindow& sent = sequence.sent_windows[i];
    PlanWindow& window = plan_.windows[i];
    const uint32_t begin = std::max(sent.end, table.first);
    CHECK(table.entries.back().page != cache::kNoPage, "sequence {}: no page of cache group {} for its last token",
          sequence.id.value(), i + 1);
    for (uint32_t index = begin; index < table.end(); ++index) {
      const PageId page = table.entries[index - table.first].page;
      window.pages.push_back(page);
      sent.digest = table_digest(sent.digest, page);
    }
    window.counts.push_back(table.end() - begin);
    sent.end = table.end();
    plan_.digest = window_digest(plan_.digest, sent.digest);
  }
}

void PlanBuilder::add_sample_masks(Sequence& sequence) {
  if (sequence.matcher) {
    CHECK(!sequence.awaits_mask(), "sequence {}: its token mask is not computed yet", sequence.id.value());
    if (sequence.allowed == nullptr) sequence.allowed = sequence.matcher->allowed();
    CHECK(sequence.allowed != nullptr, "sequence {}: no token can come next", sequence.id.value());
  }
  const auto forced =
      sequence.reasoning_budget ? sequence.reasoning_budget->forced_mask(sequence.allowed.get()) : nullptr;
  if (forced != nullptr) {
    CHECK(sequence.drafts.empty(), "sequence {}: {} drafts after the end of its reasoning", sequence.id.value(),
          sequence.drafts.size());
    plan_.sample_masks.push_back(static_cast<int32_t>(masks_.index_of(forced, plan_)));
    return;
  }
  if (!sequence.matcher) {
    plan_.sample_masks.insert(plan_.sample_masks.end(), 1 + sequence.drafts.size(), -1);
    return;
  }
  plan_.sample_masks.push_back(static_cast<int32_t>(masks_.index_of(sequence.allowed, plan_)));
  for (const Draft& draft : sequence.drafts) {
    plan_.sample_masks.push_back(static_cast<int32_t>(masks_.index_of(draft.allowed, plan_)));
  }
}

// Pages before the window may go only now: until here, another slice of this plan would have taken them.
Plan PlanBuilder::take() {
  if (!plan_.windows.empty()) {
    for (const SequenceId id : sequences_) {
      Sequence& sequence = *state_.find(id);
      state_.cache.advance_windows(sequence.page_table, sequence.scheduled);
    }
  }
  plan_.closes = std::exchange(state_.closed_slots, {});
  plan_.copies = state_.cache.take_copies();
  if (std::ranges::all_of(plan_.sample_masks, [](int32_t mask) { return mask < 0; })) plan_.sample_masks.clear();
  state_.add_in_flight({std::exchange(sequences_, {}), plan_.slices});
  return std::exchange(plan_, {});
}

}  // namespace millrace::sched
