#include "sched/scheduler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace millrace::sched {

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options), pool_(options.page_count) {
  CHECK(options.page_size > 0 && options.max_running > 0 && options.window > 0 && options.chunked_prefill_size > 0);
  CHECK(options.context_length <= uint64_t{options.page_count} * options.page_size,
        "a context of {} tokens, the pages hold {}", options.context_length,
        uint64_t{options.page_count} * options.page_size);
  for (uint32_t slot = options.max_running; slot-- > 0;) free_slots_.emplace_back(slot);
}

size_t Scheduler::pages_for(size_t tokens) const { return (tokens + options_.page_size - 1) / options_.page_size; }

Result<void> Scheduler::admissible(const GenerateRequest& request) const {
  const size_t most = options_.context_length - (request.max_tokens > 0 ? 1 : 0);
  if (request.prompt.empty()) return Error{ErrorCode::kInvalidArgument, "the prompt is empty"};
  if (request.prompt.size() > most) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt has {} tokens, a context of {} leaves room for {}",
                      request.prompt.size(), options_.context_length, most);
  }
  return {};
}

void Scheduler::add(SequenceId id, GenerateRequest request) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->tokens = request.prompt;
  sequence->request = std::move(request);
  waiting_.push_back(sequence.get());
  const bool inserted = sequences_.emplace(id, std::move(sequence)).second;
  CHECK(inserted, "sequence {} added twice", id.value());
}

// Pages and slot are free at once, though plans in flight still use them: every stage runs plans in order, so whoever
// gets them next comes after.
void Scheduler::leave(Sequence& sequence) {
  if (!sequence.running) return;
  pool_.release(sequence.pages);
  sequence.pages.clear();
  sequence.announced_pages = 0;
  sequence.scheduled = 0;
  sequence.running = false;
  pending_closes_.push_back(sequence.slot);
  free_slots_.push_back(sequence.slot);
  std::erase(running_, &sequence);
}

void Scheduler::remove(Sequence& sequence) {
  leave(sequence);
  std::erase(waiting_, &sequence);
  sequences_.erase(sequence.id);
}

bool Scheduler::abort(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  remove(*found->second);
  return true;
}

std::vector<SequenceId> Scheduler::lose_ring() {
  std::vector<SequenceId> ended;
  for (const Sequence* sequence : running_) ended.push_back(sequence->id);
  std::sort(ended.begin(), ended.end());
  for (const SequenceId id : ended) abort(id);
  for (Sequence* sequence : waiting_) sequence->in_flight = 0;
  in_flight_.clear();
  pending_closes_.clear();
  CHECK(free_slots_.size() == options_.max_running, "{} of {} slots are free without a ring", free_slots_.size(),
        options_.max_running);
  CHECK(pool_.free_count() == pool_.page_count(), "{} of {} pages are free without a ring", pool_.free_count(),
        pool_.page_count());
  return ended;
}

std::optional<Plan> Scheduler::next() {
  ++turn_;
  Plan plan;
  in_flight_.emplace_back();
  plan_decodes(plan);
  plan_prefills(plan);
  if (plan.slices.empty()) {
    in_flight_.pop_back();
    return std::nullopt;
  }
  plan.closes = std::exchange(pending_closes_, {});
  return plan;
}

Plan Scheduler::empty_plan() {
  in_flight_.emplace_back();
  Plan plan;
  plan.closes = std::exchange(pending_closes_, {});
  return plan;
}

void Scheduler::add_slice(Plan& plan, Sequence& sequence, uint32_t token_count) {
  const uint32_t end = sequence.scheduled + token_count;
  const bool last_chunk = end == sequence.tokens.size();
  PlanSlice slice;
  slice.slot = sequence.slot;
  slice.prefix = sequence.scheduled;
  slice.token_count = token_count;
  slice.new_page_count = static_cast<uint32_t>(sequence.pages.size()) - sequence.announced_pages;
  slice.sample = last_chunk && sequence.request.max_tokens > 0;
  if (sequence.wants_scores()) {
    slice.score_top = sequence.request.prompt_top_logprobs;
    slice.next_token = last_chunk ? -1 : sequence.tokens[end];
  }
  plan.slices.push_back(slice);
  plan.tokens.insert(plan.tokens.end(), sequence.tokens.begin() + sequence.scheduled, sequence.tokens.begin() + end);
  plan.new_pages.insert(plan.new_pages.end(), sequence.pages.begin() + sequence.announced_pages,
                        sequence.pages.end());
  sequence.announced_pages = static_cast<uint32_t>(sequence.pages.size());
  sequence.scheduled = end;
  sequence.last_planned = turn_;
  ++sequence.in_flight;
  in_flight_.back().push_back(sequence.id);
}

// Every plan takes its share of the decoding sequences, so that the plans in flight cost the same.
void Scheduler::plan_decodes(Plan& plan) {
  std::vector<Sequence*> ready;
  size_t decoding = 0;
  for (Sequence* sequence : running_) {
    if (!sequence->decoding()) continue;
    ++decoding;
    if (sequence->in_flight == 0) ready.push_back(sequence);
  }
  std::sort(ready.begin(), ready.end(), [](const Sequence* a, const Sequence* b) {
    return std::pair(a->last_planned, a->id) < std::pair(b->last_planned, b->id);
  });
  const size_t share = (decoding + options_.window - 1) / options_.window;
  size_t planned = 0;
  for (Sequence* sequence : ready) {
    if (planned == share) break;
    if (!sequence->running || !reserve_decode_page(*sequence)) continue;
    add_slice(plan, *sequence, 1);
    ++planned;
  }
}

// Out of pages, the sequence admitted last goes back to the queue. It may be the needy one itself; one that is in this
// very plan, or whose prompt is on its way, may not.
bool Scheduler::reserve_decode_page(Sequence& sequence) {
  const size_t wanted = pages_for(sequence.scheduled + 1);
  while (sequence.pages.size() < wanted) {
    if (pool_.allocate(1, sequence.pages)) continue;
    const auto victim = std::find_if(running_.rbegin(), running_.rend(), [&](const Sequence* candidate) {
      return candidate == &sequence || (candidate->in_flight == 0 && candidate->last_planned != turn_);
    });
    const bool needy_is_victim = *victim == &sequence;
    if (needy_is_victim && running_.front() == &sequence) return false;
    retract(**victim);
    if (needy_is_victim) return false;
  }
  return true;
}

void Scheduler::retract(Sequence& sequence) {
  leave(sequence);
  sequence.prompt_scores.clear();
  waiting_.push_front(&sequence);
  ++retraction_count_;
}

void Scheduler::plan_prefills(Plan& plan) {
  uint32_t budget = options_.chunked_prefill_size;
  const auto take = [&](Sequence& sequence) {
    const uint32_t count = std::min(budget, sequence.unscheduled());
    if (count > 0) add_slice(plan, sequence, count);
    budget -= count;
  };
  for (Sequence* sequence : running_) {
    if (!sequence->decoding()) take(*sequence);
  }
  while (budget > 0) {
    Sequence* admitted = admit(plan);
    if (admitted == nullptr) break;
    take(*admitted);
  }
}

// First come, first served: whoever is first waits until there are pages for all its tokens, and one to spare for each
// running sequence.
Sequence* Scheduler::admit(Plan& plan) {
  if (waiting_.empty() || free_slots_.empty()) return nullptr;
  Sequence& sequence = *waiting_.front();
  if (sequence.in_flight > 0) return nullptr;
  const size_t wanted = pages_for(sequence.tokens.size());
  if (pool_.free_count() < wanted + running_.size() || !pool_.allocate(wanted, sequence.pages)) return nullptr;
  waiting_.pop_front();
  sequence.running = true;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  running_.push_back(&sequence);
  plan.opens.push_back({sequence.slot, sequence.prompt_length(), sequence.request.sampling});
  return &sequence;
}

std::vector<SequenceUpdate> Scheduler::complete(const PlanOutput& output) {
  CHECK(!in_flight_.empty(), "an output without a plan in flight");
  const std::vector<SequenceId> slices = std::move(in_flight_.front());
  in_flight_.pop_front();
  CHECK(output.slices.size() == slices.size(), "plan {}: {} slices in its output, {} planned", output.id.value(),
        output.slices.size(), slices.size());
  std::vector<SequenceUpdate> updates;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto found = sequences_.find(slices[i]);
    if (found == sequences_.end()) continue;
    auto event = book(*found->second, output.slices[i]);
    if (!event) continue;
    if (event->last()) remove(*found->second);
    updates.push_back({slices[i], std::move(*event)});
  }
  return updates;
}

std::optional<GenerateEvent> Scheduler::book(Sequence& sequence, const SliceOutput& slice) {
  CHECK(sequence.in_flight > 0);
  --sequence.in_flight;
  book_scores(sequence, slice);
  const bool scored = sequence.request.max_tokens == 0 && sequence.running && sequence.in_flight == 0 &&
                      sequence.unscheduled() == 0;
  if (!slice.sample && !scored) return std::nullopt;
  GenerateEvent event;
  if (slice.sample) {
    sequence.tokens.push_back(slice.sample->token);
    event.tokens.push_back(slice.sample->token);
    if (sequence.request.sampling.top_logprobs >= 0) event.logprobs.push_back(slice.sample->logprobs);
    event.finish = finish_reason(sequence);
  } else {
    event.finish = FinishReason::kLength;
  }
  if (sequence.wants_scores()) {
    event.prompt_logprobs = std::move(sequence.prompt_scores);
    sequence.prompt_scored = true;
  }
  return event;
}

void Scheduler::book_scores(Sequence& sequence, const SliceOutput& slice) {
  if (!sequence.wants_scores() || !sequence.running) return;
  if (sequence.prompt_scores.empty()) {
    sequence.prompt_scores.push_back({.token = sequence.request.prompt.front(), .logprob = std::nanf("")});
  }
  sequence.prompt_scores.insert(sequence.prompt_scores.end(), slice.scores.begin(), slice.scores.end());
}

std::optional<FinishReason> Scheduler::finish_reason(const Sequence& sequence) const {
  const auto& stops = sequence.request.sampling.stop_token_ids;
  if (sequence.output_count() >= sequence.request.sampling.min_tokens &&
      std::find(stops.begin(), stops.end(), sequence.tokens.back()) != stops.end()) {
    return FinishReason::kStop;
  }
  if (sequence.output_count() >= sequence.request.max_tokens) return FinishReason::kLength;
  if (sequence.tokens.size() >= options_.context_length) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace millrace::sched
