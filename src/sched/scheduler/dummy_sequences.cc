#include "sched/scheduler/dummy_sequences.h"

#include <algorithm>

#include "cache/pool_division.h"
#include "cache/window_group.h"

namespace millrace::sched {
namespace {

constexpr uint32_t kTokenKinds = 32;

}  // namespace

void DummySequences::close_all(Plan& plan) {
  for (uint32_t slot = 0; slot < open_.size(); ++slot) plan.closes.emplace_back(slot);
  open_.clear();
  used_pages_ = 0;
}

void DummySequences::open(Plan& plan, uint32_t prompt_length) {
  plan.opens.push_back({.slot = SlotId(static_cast<uint32_t>(open_.size())), .prompt_length = prompt_length});
  open_.emplace_back();
}

void DummySequences::open_with_prefix(Plan& plan, uint32_t prefix, uint32_t tokens) {
  const uint32_t page_count = full_pages_ > 0 ? prefix / page_size_ : 0;
  open(plan, page_count * page_size_ + tokens);
  plan.opens.back().cached_length = page_count * page_size_;
  DummySequence& sequence = open_.back();
  sequence.length = page_count * page_size_;
  for (uint32_t i = 0; i < page_count; ++i) sequence.pages.emplace_back(i % full_pages_);
}

void DummySequences::reopen(Plan& plan, uint32_t slot, uint32_t prompt_length) {
  plan.closes.emplace_back(slot);
  plan.opens.push_back({.slot = SlotId(slot), .prompt_length = prompt_length});
  open_[slot] = {.pages = std::move(open_[slot].pages)};
}

// Pages of a window group repeat, since only the time to read and write them matters.
PageId DummySequences::window_page(size_t window, const PlanSlice& slice, uint32_t index, uint32_t end) {
  if (windows_[window].kind == GroupKind::kState) return state_page(window, slice, index, end);
  const uint32_t page_count = windows_[window].pages.device;
  uint32_t& used = used_window_pages_[window];
  const bool is_cached = index * page_size_ < slice.prefix;
  return PageId(is_cached ? index % std::min(used, page_count) : used++ % page_count);
}

// The sequences of a plan write to pages of their own, two by turns.
PageId DummySequences::state_page(size_t window, const PlanSlice& slice, uint32_t index, uint32_t end) {
  if (index * page_size_ < slice.prefix) return written_states_[window];
  if (index + 1 < end) return cache::kNoPage;
  const uint32_t number = slice.slot.value() * cache::kRunningStatePages + index % cache::kRunningStatePages;
  return written_states_[window] = PageId(number % windows_[window].pages.device);
}

void DummySequences::append_window_pages(Plan& plan, const PlanSlice& slice, DummySequence& sequence) {
  plan.windows.resize(windows_.size());
  sequence.windows.resize(windows_.size());
  for (size_t i = 0; i < windows_.size(); ++i) {
    DummySequence::SentWindow& sent = sequence.windows[i];
    PlanWindow& window = plan.windows[i];
    const uint32_t begin = std::max(sent.end, cache::first_window_page(slice.prefix, windows_[i].window, page_size_));
    const uint32_t end = std::max(begin, (sequence.length + page_size_ - 1) / page_size_);
    for (uint32_t index = begin; index < end; ++index) {
      const PageId page = window_page(i, slice, index, end);
      window.pages.push_back(page);
      sent.digest = sched::table_digest(sent.digest, page);
    }
    window.counts.push_back(end - begin);
    sent.end = end;
    plan.digest = window_digest(plan.digest, sent.digest);
  }
}

// The first sequence has the first pages in order, so that its full pages are the ids below full_pages_.
void DummySequences::append(Plan& plan, uint32_t slot, uint32_t tokens) {
  DummySequence& sequence = open_[slot];
  PlanSlice slice;
  slice.slot = SlotId(slot);
  slice.prefix = sequence.length;
  slice.token_count = tokens;
  slice.sample = sample_;
  if (!sample_) slice.pooling = SlicePooling::kLastRow;
  sequence.length += tokens;
  for (; sequence.sent_pages * page_size_ < sequence.length; ++sequence.sent_pages) {
    if (sequence.sent_pages == sequence.pages.size()) sequence.pages.emplace_back(used_pages_++);
    const PageId page = sequence.pages[sequence.sent_pages];
    plan.new_pages.push_back(page);
    sequence.table_digest = sched::table_digest(sequence.table_digest, page);
    ++slice.new_page_count;
  }
  if (slot == 0 && slice.prefix == 0) full_pages_ = std::max(full_pages_, sequence.length / page_size_);
  const uint32_t token_kinds = std::clamp(vocab_size_, 1u, kTokenKinds);
  // Tokens vary with position and sequence, since a token's experts follow from it.
  const uint32_t first = slice.prefix + slot;
  for (uint32_t i = 0; i < tokens; ++i) plan.tokens.push_back(static_cast<TokenId>((first + i) % token_kinds));
  plan.digest = plan_digest(plan.digest, slice, sequence.table_digest);
  append_window_pages(plan, slice, sequence);
  plan.slices.push_back(slice);
}

}  // namespace millrace::sched
