#include "sched/stage/sequence_table.h"

#include <algorithm>

#include "cache/window_group.h"

namespace millrace::sched {

SequenceTable::SequenceTable(const StageBounds& bounds, bool samples)
    : bounds_(bounds), samples_(samples), slots_(bounds.slot_count), masks_(mask_table_size(bounds.slot_count)) {
  for (size_t i = 0; i < bounds.group_count(); ++i) {
    const uint32_t page_count = bounds.pools(i).device;
    groups_.push_back({.window = i == 0 ? 0 : bounds.windows[i - 1].window,
                       .has_states = bounds.kind(i) == GroupKind::kState,
                       .page_count = page_count,
                       .written = std::vector<bool>(page_count),
                       .page_begin = {},
                       .pages = {}});
  }
}

uint32_t SequenceTable::Group::first_page(const PlanSlice& slice, uint32_t page_size) const {
  return window == 0 ? 0 : cache::first_window_page(slice.prefix, window, page_size);
}

// Attention reads nothing before the window except as padding of its blocks, for which any page will do. Layers with
// states read and write none of the pages that are missing.
void SequenceTable::Group::add_to_batch(const PlanSlice& slice, uint32_t page_size, const Table& table) {
  const uint32_t first = first_page(slice, page_size);
  pages.insert(pages.end(), first, table.pages[first]);
  pages.insert(pages.end(), table.pages.begin() + first, table.pages.end());
  page_begin.push_back(static_cast<int32_t>(pages.size()));
}

Result<void> SequenceTable::open_and_close(const Plan& plan) {
  for (const SlotId slot : plan.closes) {
    if (slot.value() >= slots_.size() || !slots_[slot.value()]) {
      return make_error(ErrorCode::kData, "plan {}: closes slot {}, which is not open", plan.id.value(), slot.value());
    }
    slots_[slot.value()].reset();
  }
  for (const SequenceOpen& open : plan.opens) {
    if (open.slot.value() >= slots_.size() || slots_[open.slot.value()]) {
      return make_error(ErrorCode::kData, "plan {}: opens slot {}, which is not free", plan.id.value(),
                        open.slot.value());
    }
    Sequence& sequence = slots_[open.slot.value()].emplace();
    sequence.tables.resize(groups_.size());
    sequence.prompt_length = open.prompt_length;
    sequence.sampling = open.sampling;
    sequence.length = open.cached_length;
    const bool needs_history = samples_ && open.sampling.needs_history();
    if (needs_history && open.history.size() != open.cached_length) {
      return make_error(ErrorCode::kData, "plan {}: slot {} opens with {} cached tokens and a history of {}",
                        plan.id.value(), open.slot.value(), open.cached_length, open.history.size());
    }
    if (needs_history) sequence.history = open.history;
  }
  return {};
}

Result<void> SequenceTable::append_pages(Group& group, const PlanSlice& slice, std::span<const PageId> new_pages,
                                         Table& table) {
  const uint32_t slot = slice.slot.value();
  for (const PageId page : new_pages) {
    if (page.value() < group.page_count || (group.has_states && page == cache::kNoPage)) continue;
    return make_error(ErrorCode::kData, "slot {}: page {} of a pool of {}", slot, page.value(), group.page_count);
  }
  // A prefix that is found in the cache has no pages before the window.
  const uint32_t first = group.first_page(slice, bounds_.page_size);
  if (table.pages.size() < first) table.pages.resize(first, cache::kNoPage);
  for (const PageId page : new_pages) {
    const bool in_prefix = table.pages.size() * size_t{bounds_.page_size} < slice.prefix;
    if (in_prefix && page != cache::kNoPage && !group.written[page.value()]) {
      return make_error(ErrorCode::kData, "slot {}: page {} of its prefix was never written", slot, page.value());
    }
    table.pages.push_back(page);
    table.digest = table_digest(table.digest, page);
  }
  const uint64_t length = uint64_t{slice.prefix} + slice.token_count - (group.has_states ? slice.draft_count : 0);
  if (length > uint64_t{bounds_.page_size} * table.pages.size()) {
    return make_error(ErrorCode::kData, "slot {}: {} tokens do not fit its {} pages", slot, length, table.pages.size());
  }
  if (group.has_states) RETURN_IF_ERROR(check_state_pages(slice, table));
  for (size_t at = slice.prefix / bounds_.page_size; at * bounds_.page_size < length; ++at) {
    if (table.pages[at] != cache::kNoPage) group.written[table.pages[at].value()] = true;
  }
  return {};
}

/// Checks that a slice finds the states before its first token, and has a page for those after its last one that is no
/// draft.
Result<void> SequenceTable::check_state_pages(const PlanSlice& slice, const Table& table) const {
  for (const uint32_t tokens : {slice.prefix, slice.prefix + slice.token_count - slice.draft_count}) {
    if (tokens == 0 || table.pages[(tokens - 1) / bounds_.page_size] != cache::kNoPage) continue;
    return make_error(ErrorCode::kData, "slot {}: no page has the states after {} tokens", slice.slot.value(), tokens);
  }
  return {};
}

Result<void> SequenceTable::append(const PlanSlice& slice, std::span<const TokenId> tokens) {
  if (slice.slot.value() >= slots_.size() || !slots_[slice.slot.value()]) {
    return make_error(ErrorCode::kData, "a slice of slot {}, which is not open", slice.slot.value());
  }
  Sequence& sequence = *slots_[slice.slot.value()];
  if (slice.prefix > sequence.length || slice.prefix + sequence.draft_count < sequence.length) {
    return make_error(ErrorCode::kData, "slot {}: a slice at {}, the sequence has {} tokens, {} of them drafts",
                      slice.slot.value(), slice.prefix, sequence.length, sequence.draft_count);
  }
  sequence.length = slice.prefix + slice.token_count;
  sequence.draft_count = slice.draft_count;
  if (samples_ && sequence.sampling.needs_history()) {
    sequence.history.resize(slice.prefix);
    sequence.history.insert(sequence.history.end(), tokens.begin(), tokens.end());
  }
  return {};
}

/// Returns the spec of a sample after `length` tokens of the sequence.
tensor::SampleSpec SequenceTable::sample_spec(const Sequence& sequence, uint32_t length) const {
  tensor::SampleSpec spec;
  spec.params = &sequence.sampling;
  spec.position = length;
  spec.output_count = length - std::min(length, sequence.prompt_length);
  const auto history = std::span(sequence.history).first(std::min<size_t>(sequence.history.size(), length));
  const size_t prompt = std::min<size_t>(history.size(), sequence.prompt_length);
  spec.prompt = history.first(prompt);
  spec.output = history.subspan(prompt);
  return spec;
}

Result<void> SequenceTable::add_specs(const Plan& plan, const PlanSlice& slice, StageBatch& batch) const {
  const Sequence& sequence = *slots_[slice.slot.value()];
  for (uint32_t left = slice.sample_count(); left > 0; --left) {
    tensor::SampleSpec spec = sample_spec(sequence, sequence.length - (left - 1));
    const int32_t mask = plan.sample_masks.empty() ? -1 : plan.sample_masks[batch.sample_specs.size()];
    if (mask >= 0) {
      spec.allowed = masks_[static_cast<size_t>(mask)].words();
      if (spec.allowed.empty()) {
        return make_error(ErrorCode::kData, "plan {}: the mask in place {}, where none is", plan.id.value(), mask);
      }
    }
    batch.sample_specs.push_back(spec);
  }
  return {};
}

/// Checks that what is sampled or scored has logits: a token without a logit has no logprob either.
Result<void> SequenceTable::check_targets(const Plan& plan) const {
  std::span<const TokenId> tokens(plan.tokens);
  for (const PlanSlice& slice : plan.slices) {
    const auto own = tokens.first(slice.token_count);
    tokens = tokens.subspan(slice.token_count);
    if ((slice.sample || slice.prompt_top_logprobs >= 0) && !bounds_.has_output_head) {
      return make_error(ErrorCode::kData,
                        "plan {}: draws or scores for slot {}, where the last stage has no output head",
                        plan.id.value(), slice.slot.value());
    }
    if (slice.prompt_top_logprobs < 0) continue;
    TokenId largest = slice.next_token;
    for (const TokenId token : own.subspan(1)) largest = std::max(largest, token);
    if (largest < 0 || static_cast<uint32_t>(largest) < bounds_.sampling_vocab) continue;
    return make_error(ErrorCode::kData, "plan {}: scores token {}, {} ids have a logit", plan.id.value(), largest,
                      bounds_.sampling_vocab);
  }
  return {};
}

Result<void> SequenceTable::check_masks(const Plan& plan) const {
  const size_t words = TokenMask::word_count(bounds_.sampling_vocab);
  for (const MaskWrite& write : plan.masks) {
    if (write.index < masks_.size() && write.mask.words().size() == words) continue;
    return make_error(ErrorCode::kData, "plan {}: a mask of {} words in place {}, wanted {} words and a place below {}",
                      plan.id.value(), write.mask.words().size(), write.index, words, masks_.size());
  }
  for (const int32_t mask : plan.sample_masks) {
    if (mask < static_cast<int64_t>(masks_.size())) continue;
    return make_error(ErrorCode::kData, "plan {}: the mask in place {} of {}", plan.id.value(), mask, masks_.size());
  }
  return {};
}

Result<void> SequenceTable::check(const Plan& plan) const {
  if (plan.tokens.size() > bounds_.max_batch_tokens) {
    return make_error(ErrorCode::kData, "plan {}: {} tokens, at most {} fit a batch", plan.id.value(),
                      plan.tokens.size(), bounds_.max_batch_tokens);
  }
  const auto unknown = [this](TokenId token) { return static_cast<uint32_t>(token) >= bounds_.vocab_size; };
  uint32_t unknown_count = 0;
  for (const TokenId token : plan.tokens) unknown_count += unknown(token) ? 1 : 0;
  if (unknown_count > 0) {
    return make_error(ErrorCode::kData, "plan {}: token {} of a vocabulary of {}", plan.id.value(),
                      *std::ranges::find_if(plan.tokens, unknown), bounds_.vocab_size);
  }
  RETURN_IF_ERROR(check_targets(plan));
  RETURN_IF_ERROR(check_masks(plan));
  if (!plan.slices.empty() && plan.windows.size() + 1 != groups_.size()) {
    return make_error(ErrorCode::kData, "plan {}: pages of {} window groups, the stage has {}", plan.id.value(),
                      plan.windows.size(), groups_.size() - 1);
  }
  return check_copies(plan);
}

Result<void> SequenceTable::check_copies(const Plan& plan) const {
  for (const cache::PageCopy& copy : plan.copies) {
    if (copy.group >= groups_.size()) {
      return make_error(ErrorCode::kData, "plan {}: copies pages of cache group {} of {}", plan.id.value(), copy.group,
                        groups_.size());
    }
    const cache::PoolSizes pools = bounds_.pools(copy.group);
    for (const PageId page : copy.device) {
      if (page.value() < pools.device) continue;
      return make_error(ErrorCode::kData, "plan {}: copies page {} of a pool of {}", plan.id.value(), page.value(),
                        pools.device);
    }
    for (const HostPageId page : copy.host) {
      if (page.value() < pools.host) continue;
      return make_error(ErrorCode::kData, "plan {}: copies host page {} of a pool of {}", plan.id.value(), page.value(),
                        pools.host);
    }
  }
  return {};
}

/// Appends the pages of all slices in all groups. Returns the digest of the tables.
Result<uint64_t> SequenceTable::append_all_pages(const Plan& plan) {
  std::vector<size_t> taken(groups_.size());
  uint64_t digest = 0;
  for (Group& group : groups_) {
    group.page_begin.assign(1, 0);
    group.pages.clear();
  }
  for (size_t s = 0; s < plan.slices.size(); ++s) {
    const PlanSlice& slice = plan.slices[s];
    Sequence& sequence = *slots_[slice.slot.value()];
    for (size_t g = 0; g < groups_.size(); ++g) {
      const std::vector<PageId>& all = g == 0 ? plan.new_pages : plan.windows[g - 1].pages;
      const size_t count = g == 0 ? slice.new_page_count : plan.windows[g - 1].counts[s];
      RETURN_IF_ERROR(append_pages(groups_[g], slice, std::span(all).subspan(taken[g], count), sequence.tables[g]));
      taken[g] += count;
      groups_[g].add_to_batch(slice, bounds_.page_size, sequence.tables[g]);
      const uint64_t table = sequence.tables[g].digest;
      digest = g == 0 ? plan_digest(digest, slice, table) : window_digest(digest, table);
    }
  }
  return digest;
}

Result<StageBatch> SequenceTable::apply(const Plan& plan) {
  RETURN_IF_ERROR(check(plan));
  RETURN_IF_ERROR(open_and_close(plan));
  for (const MaskWrite& write : plan.masks) {
    if (samples_) masks_[write.index] = write.mask;
  }
  for (const cache::PageCopy& copy : plan.copies) {
    if (copy.kind != cache::CopyKind::kLoad) continue;
    for (const PageId page : copy.device) groups_[copy.group].written[page.value()] = true;
  }
  row_begin_.assign(1, 0);
  prefix_.clear();
  drafts_.clear();
  bool has_drafts = false;
  StageBatch batch;
  batch.plan = plan.id;
  std::span<const TokenId> tokens(plan.tokens);
  for (const PlanSlice& slice : plan.slices) {
    RETURN_IF_ERROR(append(slice, tokens.first(slice.token_count)));
    tokens = tokens.subspan(slice.token_count);
    row_begin_.push_back(row_begin_.back() + static_cast<int32_t>(slice.token_count));
    prefix_.push_back(static_cast<int32_t>(slice.prefix));
    drafts_.push_back(static_cast<int32_t>(slice.draft_count));
    has_drafts |= slice.draft_count > 0;
    if (samples_) RETURN_IF_ERROR(add_specs(plan, slice, batch));
  }
  const auto digest = append_all_pages(plan);
  if (digest.has_error()) return digest.error();
  if (*digest != plan.digest) {
    return make_error(ErrorCode::kData, "plan {}: its pages have digest {:016x} here, {:016x} at the head",
                      plan.id.value(), *digest, plan.digest);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const std::span<const int32_t> drafts(drafts_);
    const tensor::BatchLayout layout{.row_begin = row_begin_,
                                     .prefix = prefix_,
                                     .page_begin = groups_[g].page_begin,
                                     .pages = groups_[g].pages,
                                     .drafts = has_drafts ? drafts : std::span<const int32_t>()};
    if (g == 0) {
      batch.layout = layout;
    } else {
      batch.windows.push_back(layout);
    }
  }
  batch.tokens = plan.tokens;
  batch.slices = plan.slices;
  return batch;
}

}  // namespace millrace::sched
