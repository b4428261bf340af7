#include "sched/stage/sequence_table.h"

#include <algorithm>

namespace millrace::sched {

SequenceTable::SequenceTable(const StageBounds& bounds, bool samples)
    : bounds_(bounds),
      samples_(samples),
      slots_(bounds.slot_count),
      masks_(mask_table_size(bounds.slot_count)),
      written_(bounds.page_count) {}

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

Result<void> SequenceTable::append(const PlanSlice& slice, std::span<const TokenId> tokens,
                                   std::span<const PageId> new_pages) {
  if (slice.slot.value() >= slots_.size() || !slots_[slice.slot.value()]) {
    return make_error(ErrorCode::kData, "a slice of slot {}, which is not open", slice.slot.value());
  }
  Sequence& sequence = *slots_[slice.slot.value()];
  if (slice.prefix > sequence.length || slice.prefix + sequence.draft_count < sequence.length) {
    return make_error(ErrorCode::kData, "slot {}: a slice at {}, the sequence has {} tokens, {} of them drafts",
                      slice.slot.value(), slice.prefix, sequence.length, sequence.draft_count);
  }
  for (const PageId page : new_pages) {
    if (page.value() >= bounds_.page_count) {
      return make_error(ErrorCode::kData, "slot {}: page {} of a pool of {}", slice.slot.value(), page.value(),
                        bounds_.page_count);
    }
  }
  for (const PageId page : new_pages) {
    const bool in_prefix = sequence.pages.size() * size_t{bounds_.page_size} < slice.prefix;
    if (in_prefix && !written_[page.value()]) {
      return make_error(ErrorCode::kData, "slot {}: page {} of its prefix was never written", slice.slot.value(),
                        page.value());
    }
    sequence.pages.push_back(page);
    sequence.digest = table_digest(sequence.digest, page);
  }
  const uint64_t length = uint64_t{slice.prefix} + slice.token_count;
  if (length > uint64_t{bounds_.page_size} * sequence.pages.size()) {
    return make_error(ErrorCode::kData, "slot {}: {} tokens do not fit its {} pages", slice.slot.value(), length,
                      sequence.pages.size());
  }
  sequence.length = static_cast<uint32_t>(length);
  sequence.draft_count = slice.draft_count;
  for (size_t at = slice.prefix / bounds_.page_size; at * bounds_.page_size < length; ++at) {
    written_[sequence.pages[at].value()] = true;
  }
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
  for (const cache::PageCopy& copy : plan.copies) {
    for (const PageId page : copy.device) {
      if (page.value() < bounds_.page_count) continue;
      return make_error(ErrorCode::kData, "plan {}: copies page {} of a pool of {}", plan.id.value(), page.value(),
                        bounds_.page_count);
    }
    for (const HostPageId page : copy.host) {
      if (page.value() < bounds_.host_page_count) continue;
      return make_error(ErrorCode::kData, "plan {}: copies host page {} of a pool of {}", plan.id.value(), page.value(),
                        bounds_.host_page_count);
    }
  }
  return {};
}

Result<StageBatch> SequenceTable::apply(const Plan& plan) {
  RETURN_IF_ERROR(check(plan));
  RETURN_IF_ERROR(open_and_close(plan));
  for (const MaskWrite& write : plan.masks) {
    if (samples_) masks_[write.index] = write.mask;
  }
  for (const cache::PageCopy& copy : plan.copies) {
    if (copy.kind != cache::CopyKind::kLoad) continue;
    for (const PageId page : copy.device) written_[page.value()] = true;
  }
  uint64_t digest = 0;
  row_begin_.assign(1, 0);
  prefix_.clear();
  page_begin_.assign(1, 0);
  pages_.clear();
  StageBatch batch;
  batch.plan = plan.id;
  std::span<const TokenId> tokens(plan.tokens);
  std::span<const PageId> new_pages(plan.new_pages);
  for (const PlanSlice& slice : plan.slices) {
    RETURN_IF_ERROR(append(slice, tokens.first(slice.token_count), new_pages.first(slice.new_page_count)));
    tokens = tokens.subspan(slice.token_count);
    new_pages = new_pages.subspan(slice.new_page_count);
    const Sequence& sequence = *slots_[slice.slot.value()];
    digest = plan_digest(digest, slice, sequence.digest);
    row_begin_.push_back(row_begin_.back() + static_cast<int32_t>(slice.token_count));
    prefix_.push_back(static_cast<int32_t>(slice.prefix));
    pages_.insert(pages_.end(), sequence.pages.begin(), sequence.pages.end());
    page_begin_.push_back(static_cast<int32_t>(pages_.size()));
    if (samples_) RETURN_IF_ERROR(add_specs(plan, slice, batch));
  }
  if (digest != plan.digest) {
    return make_error(ErrorCode::kData, "plan {}: its pages have digest {:016x} here, {:016x} at the head",
                      plan.id.value(), digest, plan.digest);
  }
  batch.layout = {row_begin_, prefix_, page_begin_, pages_};
  batch.tokens = plan.tokens;
  batch.slices = plan.slices;
  return batch;
}

}  // namespace millrace::sched
