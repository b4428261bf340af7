// What goes into a plan: decode steps, chunks of prompts, and whom to admit or send back for room.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler/scheduler.h"

namespace millrace::sched {
namespace {

/// Part of a micro-batch's prompt tokens that short prompts may take before the long one whose turn it is.
constexpr uint32_t kShortPromptPart = 4;
/// Tokens to come that admission counts for one sequence at most: few requests use a large max_tokens up.
constexpr uint64_t kMaxExpectedTokens = 4096;
/// Waiting requests looked up in the cache per turn, besides those whose turn it is.
constexpr size_t kMatchesPerTurn = 16;
/// Bytes of a plan's message that opening sequences may take; a sequence alone may take more.
constexpr size_t kMaxOpenBytes = size_t{8} << 20;

}  // namespace

std::optional<Plan> Scheduler::next() {
  if (profile_) return next_profile_plan();
  if (paused_ || cache_.verifying()) return std::nullopt;
  ++turn_;
  Plan plan;
  open_bytes_ = 0;
  draft_rows_ = 0;
  in_flight_.emplace_back();
  if (options_.policy == QueuePolicy::kLongestPrefix) refresh_matches();
  preempt();
  plan_decodes(plan);
  plan_prefills(plan);
  if (plan.slices.empty()) {
    in_flight_.pop_back();
    return std::nullopt;
  }
  new_token_ratio_.after_plan();
  finish_plan(plan);
  return plan;
}

void Scheduler::finish_plan(Plan& plan) {
  plan.closes = std::exchange(pending_closes_, {});
  plan.copies = cache_.take_copies();
  if (std::ranges::all_of(plan.sample_masks, [](int32_t mask) { return mask < 0; })) plan.sample_masks.clear();
  record_shape(plan);
}

// One plan at a time, so that no stage computes beside another on the same cores, but where that is to be timed.
std::optional<Plan> Scheduler::next_profile_plan() {
  if (!in_flight_.empty() && !profile_->allows_overlap()) return std::nullopt;
  auto plan = profile_->next(plan_count_);
  if (!plan) return std::nullopt;
  in_flight_.emplace_back();
  record_shape(*plan);
  return plan;
}

Plan Scheduler::empty_plan() {
  in_flight_.emplace_back();
  Plan plan;
  finish_plan(plan);
  return plan;
}

// The next tokens of it, and its drafts.
void Scheduler::add_slice(Plan& plan, Sequence& sequence, uint32_t token_count) {
  const uint32_t end = sequence.scheduled + token_count;
  const bool last_chunk = end == sequence.tokens.size();
  PlanSlice slice;
  slice.slot = sequence.slot;
  slice.prefix = sequence.scheduled;
  slice.draft_count = static_cast<uint32_t>(sequence.drafts.size());
  slice.token_count = token_count + slice.draft_count;
  const std::span<const PageId> new_pages = std::span(sequence.page_table.pages).subspan(sequence.sent_pages);
  slice.new_page_count = static_cast<uint32_t>(new_pages.size());
  slice.sample = last_chunk && sequence.request.max_tokens > 0;
  if (slice.sample) add_draws(plan, sequence);
  if (sequence.wants_prompt_logprobs()) {
    slice.prompt_top_logprobs = sequence.request.prompt_top_logprobs;
    slice.next_token = last_chunk ? -1 : sequence.tokens[end];
  }
  plan.slices.push_back(slice);
  plan.tokens.insert(plan.tokens.end(), sequence.tokens.begin() + sequence.scheduled, sequence.tokens.begin() + end);
  for (const Draft& draft : sequence.drafts) plan.tokens.push_back(draft.token);
  plan.new_pages.insert(plan.new_pages.end(), new_pages.begin(), new_pages.end());
  for (const PageId page : new_pages) sequence.table_digest = sched::table_digest(sequence.table_digest, page);
  plan.digest = plan_digest(plan.digest, slice, sequence.table_digest);
  sequence.sent_pages += slice.new_page_count;
  sequence.scheduled = end;
  cache_.publish(sequence.page_table, std::span(sequence.tokens).first(end));
  sequence.last_planned = turn_;
  ++sequence.in_flight;
  in_flight_.back().sequences.push_back(sequence.id);
}

// Over how many plans the decode steps are spread. Reading the weights costs every micro-batch the same, so more of
// them than the stages need make all wait longer; until the costs are known, the window is the guess.
uint32_t Scheduler::decode_plans(const BatchShape& decodes) const {
  const CostModel& costs = isolated_costs();
  if (!costs.usable()) return options_.window;
  const uint32_t most = std::min(options_.window, std::max(static_cast<uint32_t>(decodes.decode_count), 1U));
  return costs.decode_groups(decodes, most, transit_us_, machine_);
}

bool Scheduler::prefill_pending() const {
  for (const Sequence* sequence : running_) {
    if (sequence->prefilling()) return true;
  }
  const auto place = next_waiting();
  return place && has_room(*waiting_[*place]);
}

// Every plan takes its share of the decoding sequences, so that the plans in flight cost the same. Plans of decode
// steps alone are no more than that at a time: else groups that were small once would stay so.
void Scheduler::plan_decodes(Plan& plan) {
  std::vector<Sequence*> ready;
  BatchShape decodes;
  for (Sequence* sequence : running_) {
    if (!sequence->decoding()) continue;
    decodes.add_decode(static_cast<uint32_t>(sequence->tokens.size()));
    if (sequence->in_flight == 0) ready.push_back(sequence);
  }
  std::sort(ready.begin(), ready.end(), [](const Sequence* a, const Sequence* b) {
    return std::pair(a->last_planned, a->id) < std::pair(b->last_planned, b->id);
  });
  size_t share = ready.size();
  if (options_.spread_decodes) {
    const size_t plans = decode_plans(decodes);
    if (in_flight_.size() > plans && !prefill_pending()) return;
    share = (static_cast<size_t>(decodes.decode_count) + plans - 1) / plans;
  }
  const double share_of_all = static_cast<double>(share) / std::max(decodes.decode_count, 1.0);
  const double extra_row_cost = isolated_costs().extra_row_cost(
      {.decode_count = static_cast<double>(share), .decode_context = decodes.decode_context * share_of_all});
  size_t planned = 0;
  for (Sequence* sequence : ready) {
    if (planned == share) break;
    if (!sequence->running || !reserve_decode_page(*sequence)) continue;
    plan_decode(plan, *sequence, extra_row_cost);
    ++planned;
  }
}

// Out of pages, the running sequence of the least rank goes back to the queue; it may be the requester one itself.
bool Scheduler::reserve_decode_page(Sequence& sequence) {
  const size_t wanted = pages_for(sequence.scheduled + 1);
  while (sequence.page_table.pages.size() < wanted) {
    if (cache_.extend(sequence.page_table)) continue;
    if (cache_.writing_back()) return false;
    Sequence* const loser = victim(sequence);
    if (loser == nullptr) return false;
    retract(*loser);
    new_token_ratio_.after_retraction();
    if (loser == &sequence) return false;
  }
  return true;
}

bool Scheduler::higher_priority(const Sequence& a, const Sequence& b) const {
  return options_.policy == QueuePolicy::kPriority && precedes(options_.policy, a, b);
}

// From the least rank on: smaller priorities first, then those admitted last. Whoever is in this very plan or has its
// next token in flight can't move; the requester one waits for that rather than lose its place to it. A prompt between
// its chunks can: its next chunk would go out before the last one has come back, over and over.
Sequence* Scheduler::victim(Sequence& requester) {
  Sequence* least = nullptr;
  bool outranks_someone = false;
  bool behind = true;  // the sequences seen so far were admitted after the requester one
  for (auto at = running_.rbegin(); at != running_.rend(); ++at) {
    Sequence* const other = *at;
    if (other == &requester) behind = false;
    if (other == &requester || higher_priority(*other, requester) || (!behind && !higher_priority(requester, *other)))
      continue;
    outranks_someone = true;
    const bool movable = other->last_planned != turn_ && (other->in_flight == 0 || other->prefilling());
    if (movable && (least == nullptr || higher_priority(*least, *other))) least = other;
  }
  if (least != nullptr || outranks_someone) return least;
  // Alone it would fit, but for copies under way, and for what the cache keeps of pages that it computed beside another
  // sequence: those it finds when it comes back.
  const bool waits = running_.size() == 1 && cache_.copies_pin_pages();
  return waits ? nullptr : &requester;
}

void Scheduler::retract(Sequence& sequence) {
  requeue(sequence);
  ++retraction_count_;
}

void Scheduler::requeue(Sequence& sequence) {
  release_slot(sequence);
  sequence.prompt_logprobs.clear();
  waiting_.push_front(&sequence);
}

std::vector<uint32_t> Scheduler::backlog() const {
  std::vector<uint32_t> lengths;
  lengths.reserve(running_.size() + waiting_.size());
  for (const Sequence* sequence : running_) {
    if (sequence->prefilling()) lengths.push_back(static_cast<uint32_t>(sequence->tokens.size()));
  }
  for (const Sequence* sequence : waiting_) lengths.push_back(prompt_of(*sequence).left);
  return lengths;
}

void Scheduler::insert_by_priority(std::vector<Sequence*>& sequences, Sequence* added) const {
  const auto before = [this](const Sequence* a, const Sequence* b) { return higher_priority(*a, *b); };
  sequences.insert(std::upper_bound(sequences.begin(), sequences.end(), added, before), added);
}

std::vector<Sequence*> Scheduler::partial_prompts() const {
  std::vector<Sequence*> begun;
  for (Sequence* sequence : running_) {
    if (sequence->prefilling()) insert_by_priority(begun, sequence);
  }
  return begun;
}

void Scheduler::plan_prefills(Plan& plan) {
  BatchShape decodes;
  for (const PlanSlice& slice : plan.slices) decodes.add(slice);
  chunker_.begin(decodes, chunker_.is_balanced() ? backlog() : std::vector<uint32_t>());
  const std::vector<Sequence*> begun = partial_prompts();
  plan_short_prompts(plan, begun);
  for (Sequence* sequence : begun) {
    while (take_first_chunk(plan, sequence)) {
    }
    if (sequence->running && sequence->prefilling() && !take_chunk(plan, *sequence)) return;
  }
  while (take_first_chunk(plan, nullptr)) {
  }
}

// Of the next of the queue; before the chunk of a begun prompt only if it has a larger priority. False: not now.
bool Scheduler::take_first_chunk(Plan& plan, const Sequence* begun) {
  if (begun != nullptr && options_.policy != QueuePolicy::kPriority) return false;
  const auto place = next_waiting();
  if (!place) return false;
  Sequence& candidate = *waiting_[*place];
  if (begun != nullptr && !higher_priority(candidate, *begun)) return false;
  (void)match(candidate);
  if (chunker_.chunk_tokens(prompt_of(candidate)) == 0 || candidate.in_flight > 0 || !has_room(candidate)) return false;
  if (!fits_message(candidate)) return false;
  return admit(plan, candidate) && take_chunk(plan, candidate);
}

Chunker::Prompt Scheduler::prompt_of(const Sequence& sequence) {
  const uint32_t prefix = sequence.computed();
  return {prefix, static_cast<uint32_t>(sequence.tokens.size()) - prefix, sequence.last_target_us};
}

bool Scheduler::take_chunk(Plan& plan, Sequence& sequence) {
  const Chunker::Prompt prompt = prompt_of(sequence);
  const uint32_t count = chunker_.chunk_tokens(prompt);
  if (count == 0) return false;
  sequence.last_target_us = chunker_.target_us(prompt);
  chunker_.add_chunk(prompt, count);
  add_slice(plan, sequence, count);
  return true;
}

// While a long prompt has its turn, short ones go along in a part of the micro-batch, begun ones first, then out of the
// queue; each overtaking is counted, and one that has been overtaken too often lets nobody past.
void Scheduler::plan_short_prompts(Plan& plan, const std::vector<Sequence*>& begun) {
  uint32_t budget = options_.chunked_prefill_size / kShortPromptPart;
  if (begun.empty() || begun.front()->unscheduled() <= budget) return;
  const auto go_along = [&](Sequence& sequence) {
    const uint32_t count = sequence.unscheduled();
    budget -= count;
    chunker_.add_short(prompt_of(sequence));
    add_slice(plan, sequence, count);
  };
  for (Sequence* sequence : begun) {
    if (chunker_.fits_whole(prompt_of(*sequence), budget)) go_along(*sequence);
  }
  if (free_slots_.empty()) return;
  refresh_matches();
  // By what was in the cache when it was looked up last; then by what is there now.
  const auto fits = [&](Sequence& candidate) {
    if (!chunker_.fits_whole(prompt_of(candidate), budget)) return false;
    (void)match(candidate);
    return chunker_.fits_whole(prompt_of(candidate), budget);
  };
  bool lets_past = true;
  for (size_t place = 0; place < waiting_.size() && budget > 0 && lets_past;) {
    Sequence& candidate = *waiting_[place];
    const bool ready = !awaits_prefetch(candidate);
    if (!ready || candidate.in_flight > 0 || !fits(candidate)) {
      lets_past = !ready || candidate.bypasses < kMaxBypasses;
      ++place;
      continue;
    }
    if (!has_room(candidate) || !fits_message(candidate) || !admit(plan, candidate)) return;
    go_along(candidate);
  }
}

uint64_t Scheduler::expected_tokens(const Sequence& sequence) const {
  const uint64_t wanted = sequence.request.max_tokens - std::min(sequence.request.max_tokens, sequence.output_count());
  return std::min({wanted, uint64_t{options_.context_length} - sequence.tokens.size(), kMaxExpectedTokens});
}

// Alone, a sequence needs its own pages only. Beside others there must be room for what all are expected to draw.
size_t Scheduler::pages_needed(Sequence& candidate, std::span<Sequence* const> others) const {
  const size_t own = pages_for(candidate.tokens.size()) - match(candidate).device_pages;
  if (others.empty()) return own;
  uint64_t to_come = expected_tokens(candidate);
  for (const Sequence* sequence : others) to_come += expected_tokens(*sequence);
  return own + pages_for(static_cast<size_t>(new_token_ratio_.value() * static_cast<double>(to_come))) + others.size();
}

bool Scheduler::has_room(Sequence& candidate) const {
  if (free_slots_.empty()) return false;
  const size_t wanted = pages_needed(candidate, running_);
  const size_t available = cache_.available_pages();
  // How much of the match nobody uses yet is counted only where it matters.
  return available >= wanted + match(candidate).device_pages ||
         (available >= wanted && cache_.available_after(match(candidate)) >= wanted);
}

// Under the priority policy, running sequences of smaller priority than the next of the queue go back to it, least rank
// first, until it has room; none does when it would have none with all of them gone.
void Scheduler::preempt() {
  const auto place = options_.policy == QueuePolicy::kPriority ? next_waiting() : std::nullopt;
  if (!place) return;
  Sequence& candidate = *waiting_[*place];
  if (has_room(candidate)) return;
  std::vector<Sequence*> victims;
  std::vector<Sequence*> others;
  size_t pages = cache_.available_after(match(candidate));
  for (Sequence* sequence : running_) {
    if (higher_priority(candidate, *sequence)) {
      insert_by_priority(victims, sequence);
      pages += cache_.exclusively_held(sequence->page_table, match(candidate));
    } else {
      others.push_back(sequence);
    }
  }
  if (pages < pages_needed(candidate, others)) return;
  while (!victims.empty() && !has_room(candidate)) {
    ++victims.back()->bypasses;
    retract(*victims.back());
    victims.pop_back();
  }
}

// What of a plan's message grows with the requests that it opens: their histories above all.
size_t Scheduler::open_bytes(const Sequence& sequence) {
  const tensor::SamplingParams& sampling = sequence.request.sampling;
  const size_t history = sampling.needs_history() ? sequence.match_tokens : 0;
  return sizeof(TokenId) * (history + sampling.stop_token_ids.size()) +
         (sizeof(TokenId) + sizeof(float)) * sampling.logit_bias.size();
}

bool Scheduler::fits_message(const Sequence& candidate) const {
  return open_bytes_ == 0 || open_bytes_ + open_bytes(candidate) <= kMaxOpenBytes;
}

// False when pages that could be had are still being copied.
bool Scheduler::admit(Plan& plan, Sequence& sequence) {
  const cache::RadixTree::Match known = match(sequence);
  if (!cache_.acquire(sequence.page_table, sequence.request.cache_salt, known, pages_for(sequence.tokens.size()))) {
    return false;
  }
  cache_.stop_prefetch(sequence.id);
  const auto place = std::ranges::find(waiting_, &sequence) - waiting_.begin();
  take_from_queue(waiting_, static_cast<size_t>(place));
  // Begun prompts of smaller priority are overtaken as well: their chunks come after this one's.
  for (Sequence* other : running_) {
    if (other->prefilling() && higher_priority(sequence, *other)) ++other->bypasses;
  }
  sequence.running = true;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  running_.push_back(&sequence);
  sequence.scheduled = known.pages * options_.page_size;
  if (!sequence.cached_tokens) sequence.cached_tokens = sequence.scheduled;
  SequenceOpen open{sequence.slot, sequence.prompt_length, sequence.scheduled, {}, sequence.request.sampling};
  if (open.sampling.needs_history()) {
    open.history.assign(sequence.tokens.begin(), sequence.tokens.begin() + sequence.scheduled);
  }
  plan.opens.push_back(std::move(open));
  open_bytes_ += open_bytes(sequence);
  return true;
}

const cache::RadixTree::Match& Scheduler::match(Sequence& sequence) const {
  if (sequence.match_version == cache_.version()) return sequence.match;
  sequence.match_version = cache_.version();
  sequence.match = {};
  if (!sequence.wants_prompt_logprobs())
    sequence.match = cache_.match(sequence.request.cache_salt, sequence.reusable_tokens());
  sequence.match_tokens = sequence.match.pages * options_.page_size;
  return sequence.match;
}

bool Scheduler::awaits_prefetch(const Sequence& sequence) const {
  return sequence.awaits_prefetch && cache_.prefetching(sequence.id);
}

std::optional<size_t> Scheduler::next_waiting() const {
  return next_in_queue(options_.policy, waiting_,
                       [this](const Sequence& sequence) { return !awaits_prefetch(sequence); });
}

// What a few of the queue find in the cache, looked up anew in turn: all of them each turn would cost too much.
void Scheduler::refresh_matches() {
  const size_t count = std::min(waiting_.size(), kMatchesPerTurn);
  for (size_t i = 0; i < count; ++i) (void)match(*waiting_[(turn_ * kMatchesPerTurn + i) % waiting_.size()]);
}

}  // namespace millrace::sched
