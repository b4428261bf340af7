#include "sched/scheduler/output_processor.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace millrace::sched {
namespace {

/// Returns the scored rows of a slice: those whose next token is known.
size_t score_count(const PlanSlice& slice) {
  return slice.prompt_top_logprobs < 0 ? 0 : slice.token_count - (slice.next_token < 0 ? 1 : 0);
}

/// Returns why nothing can be sampled after the sequence's tokens.
Error fault_error(const Sequence& sequence, tensor::LogitFault fault) {
  if (sequence.matcher && fault == tensor::LogitFault::kAllNegativeInfinity) {
    return {ErrorCode::kInvalidArgument,
            "no token is left to sample: min_tokens or logit_bias forbid all that the grammar allows"};
  }
  if (sequence.request.pooling != Pooling::kNone) {
    return make_error(
        ErrorCode::kInternal,
        "the model gives no vector for this sequence of {} tokens: it holds {} (a broken checkpoint, or an "
        "overflow)",
        sequence.tokens.size(), tensor::to_string(fault));
  }
  return make_error(ErrorCode::kInternal,
                    "the model gives no distribution for this sequence of {} tokens: its logits hold {} (a broken "
                    "checkpoint, or an overflow)",
                    sequence.tokens.size(), tensor::to_string(fault));
}

/// Returns why nothing can follow the sequence's tokens, although the grammar wants more.
Error dead_end_error(const Sequence& sequence) {
  if (sequence.matcher->is_too_large()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the output cannot go on after {} tokens: the grammar can read it in so many ways that they take "
                      "more than {} bytes",
                      sequence.output_count(), sequence.request.grammar->limits().position_bytes);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "the output cannot go on after {} tokens: no token of the model spells what the grammar wants",
                    sequence.output_count());
}

void book_prompt_logprobs(Sequence& sequence, const SliceOutput& slice) {
  if (!sequence.wants_prompt_logprobs()) return;
  if (sequence.prompt_logprobs.empty()) {
    sequence.prompt_logprobs.push_back({.token = sequence.tokens.front(), .logprob = std::nanf("")});
  }
  sequence.prompt_logprobs.insert(sequence.prompt_logprobs.end(), slice.scores.begin(), slice.scores.end());
}

/// Returns whether a request without output has all scores of its prompt.
bool is_scored(const Sequence& sequence) {
  return sequence.request.prompt_top_logprobs >= 0 && sequence.request.max_tokens == 0 && sequence.running &&
         sequence.in_flight == 0 && sequence.unscheduled() == 0;
}

/// Returns whether an output has the vector that its slice returns, and no other.
bool has_right_vector(const PlanSlice& slice, const SliceOutput& found, uint32_t hidden_size) {
  if (!slice.returns_vector()) return found.pooled.empty();
  return hidden_size > 0 ? found.pooled.size() == hidden_size : !found.pooled.empty();
}

}  // namespace

Result<void> OutputProcessor::check(const PlanOutput& output) const {
  const auto id = output.id.value();
  const auto& in_flight = state_.in_flight;
  if (in_flight.empty()) return make_error(ErrorCode::kData, "an output of plan {}, where none is in flight", id);
  const uint64_t oldest = state_.plan_count - in_flight.size();
  if (id != oldest) return make_error(ErrorCode::kData, "an output of plan {}, wanted that of plan {}", id, oldest);
  const std::vector<PlanSlice>& planned = in_flight.front().slices;
  if (output.slices.size() != planned.size()) {
    return make_error(ErrorCode::kData, "plan {}: {} slices in its output, {} planned", id, output.slices.size(),
                      planned.size());
  }
  for (size_t i = 0; i < planned.size(); ++i) {
    const SliceOutput& found = output.slices[i];
    const size_t samples = planned[i].sample_count();
    const size_t scores = score_count(planned[i]);
    const bool is_faulty = found.fault != tensor::LogitFault::kNone;
    const bool is_complete = found.samples.size() == samples && found.scores.size() == scores;
    if (is_faulty ? found.samples.size() >= std::max<size_t>(samples, 1) : !is_complete) {
      return make_error(ErrorCode::kData, "plan {}, slice {}: {} tokens and {} scores, wanted {} and {}", id, i,
                        found.samples.size(), found.scores.size(), samples, scores);
    }
    if (is_faulty || has_right_vector(planned[i], found, state_.options.hidden_size)) continue;
    return make_error(ErrorCode::kData, "plan {}, slice {}: a vector of {} numbers, wanted {}", id, i,
                      found.pooled.size(), planned[i].returns_vector() ? state_.options.hidden_size : 0);
  }
  return {};
}

std::vector<SequenceUpdate> OutputProcessor::book(const InFlightPlan& plan, const PlanOutput& output) {
  CHECK(output.slices.size() == plan.slices.size(), "plan {}: {} slices in its output, {} planned", output.id.value(),
        output.slices.size(), plan.slices.size());
  mask_budget_ = grammar::WorkBudget(state_.options.mask_steps);
  std::vector<SequenceUpdate> updates;
  updates.reserve(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    Sequence* const sequence = state_.find(plan.sequences[i]);
    if (sequence == nullptr) continue;
    auto event = book(*sequence, output.slices[i]);
    if (!event) continue;
    if (event->last()) state_.remove(*sequence);
    updates.push_back({plan.sequences[i], std::move(*event)});
  }
  return updates;
}

// After an accepted draft, the mask is known from the draft.
Result<void> OutputProcessor::append_to_grammar(Sequence& sequence, const Draft* draft) {
  if (!sequence.matcher) return {};
  const TokenId token = sequence.tokens.back();
  if (sequence.allowed == nullptr || !sequence.allowed->contains(token)) {
    return make_error(ErrorCode::kInternal, "token {} was drawn, which the grammar does not allow", token);
  }
  sequence.matcher->append(token);
  sequence.allowed = nullptr;
  if (draft != nullptr) {
    sequence.allowed = draft->allowed;
  } else if (sequence.matcher->settle(mask_budget_)) {
    sequence.allowed = sequence.matcher->allowed();
  }
  return {};
}

void OutputProcessor::conclude(const Sequence& sequence, GenerateEvent& event) const {
  event.finish = finish_reason(sequence);
  const bool is_dead_end = sequence.matcher && sequence.matcher->is_settled() && sequence.allowed == nullptr;
  if (!event.finish && is_dead_end) event.error = dead_end_error(sequence);
}

// Among waiting sequences, only retracted ones can await a mask. They come first, and have been admitted before.
std::vector<Sequence*> OutputProcessor::awaiting_masks() const {
  std::vector<Sequence*> awaiting;
  std::ranges::copy_if(state_.running, std::back_inserter(awaiting), &Sequence::awaits_mask);
  for (Sequence* sequence : state_.waiting) {
    if (!sequence->cached_tokens) break;
    if (sequence->awaits_mask()) awaiting.push_back(sequence);
  }
  return awaiting;
}

std::vector<SequenceUpdate> OutputProcessor::work_on_masks() {
  std::vector<Sequence*> pending = awaiting_masks();
  if (pending.empty()) return {};
  std::ranges::rotate(pending, pending.begin() + static_cast<ptrdiff_t>(mask_slices_++ % pending.size()));
  grammar::WorkBudget budget(state_.options.mask_steps);
  std::vector<SequenceUpdate> updates;
  for (Sequence* sequence : pending) {
    if (budget.is_exhausted()) break;
    if (sequence->matcher->settle(budget)) sequence->allowed = sequence->matcher->allowed();
    GenerateEvent event;
    event.cached_tokens = sequence->cached_tokens.value_or(0);
    conclude(*sequence, event);
    if (!event.last()) continue;
    updates.push_back({sequence->id, std::move(event)});
    state_.remove(*sequence);
  }
  return updates;
}

std::optional<GenerateEvent> OutputProcessor::book(Sequence& sequence, const SliceOutput& slice) {
  CHECK(sequence.in_flight > 0);
  --sequence.in_flight;
  GenerateEvent event;
  if (slice.fault != tensor::LogitFault::kNone && slice.samples.empty()) {
    event.error = fault_error(sequence, slice.fault);
    return event;
  }
  if (!slice.pooled.empty()) {
    // This holds for a sequence that was retracted meanwhile, too: it ends, and is not computed again.
    event.cached_tokens = sequence.cached_tokens.value_or(0);
    event.pooled = slice.pooled;
    event.finish = FinishReason::kStop;
    return event;
  }
  // Retracted meanwhile, it has lost the scores of its prompt: they and the token after them are computed again.
  if (sequence.wants_prompt_logprobs() && !sequence.running) return std::nullopt;
  book_prompt_logprobs(sequence, slice);
  const bool scored = is_scored(sequence);
  if (slice.samples.empty() && !scored) return std::nullopt;
  event.cached_tokens = sequence.cached_tokens.value_or(0);
  if (scored) {
    event.finish = FinishReason::kLength;
  } else {
    book_samples(sequence, slice, event);
  }
  if (sequence.wants_prompt_logprobs()) {
    event.prompt_logprobs = std::move(sequence.prompt_logprobs);
    sequence.prompt_logprobs_sent = true;
  }
  return event;
}

// The first sample counts, and after each accepted draft the next one. Samples after a rejected draft follow a token
// that is not in the output.
void OutputProcessor::book_samples(Sequence& sequence, const SliceOutput& slice, GenerateEvent& event) {
  const std::vector<Draft> drafts = std::exchange(sequence.drafts, {});
  size_t booked = 0;
  for (bool goes_on = true; goes_on && booked < slice.samples.size(); ++booked) {
    const tensor::SampleResult& sample = slice.samples[booked];
    sequence.tokens.push_back(sample.token);
    if (sequence.reasoning_budget) sequence.reasoning_budget->append(sample.token);
    const bool is_accepted = booked < drafts.size() && drafts[booked].token == sample.token;
    if (auto appended = append_to_grammar(sequence, is_accepted ? &drafts[booked] : nullptr); appended.has_error()) {
      event.error = appended.error();
      break;
    }
    event.tokens.push_back(sample.token);
    if (sequence.request.sampling.top_logprobs >= 0) event.logprobs.push_back(sample.logprobs);
    conclude(sequence, event);
    goes_on = !event.last() && is_accepted;
    if (goes_on && booked + 1 == slice.samples.size()) event.error = fault_error(sequence, slice.fault);
  }
  book_drafts(sequence, drafts, event.tokens.empty() ? 0 : event.tokens.size() - 1, event);
}

void OutputProcessor::book_drafts(Sequence& sequence, std::span<const Draft> drafts, size_t accepted,
                                  GenerateEvent& event) {
  if (sequence.running)
    (state_.keeps_states() ? sequence.replayed : sequence.scheduled) += static_cast<uint32_t>(accepted);
  if (drafts.empty()) return;
  sequence.drafter->record_outcome(drafts, accepted);
  for (size_t i = 0; i < drafts.size(); ++i) {
    const bool is_accepted = i < accepted;
    const auto source = static_cast<size_t>(drafts[i].source);
    ++draft_counts_.drafted[source];
    draft_counts_.accepted[source] += is_accepted ? 1 : 0;
    if (drafts[i].source != DraftSource::kPrediction) continue;
    ++(is_accepted ? event.accepted_predictions : event.rejected_predictions);
  }
}

std::optional<FinishReason> OutputProcessor::finish_reason(const Sequence& sequence) const {
  const auto& stop_tokens = sequence.request.sampling.stop_token_ids;
  if (sequence.output_count() >= sequence.request.sampling.min_tokens &&
      std::ranges::find(stop_tokens, sequence.tokens.back()) != stop_tokens.end()) {
    return FinishReason::kStop;
  }
  if (sequence.matcher) {
    if (!sequence.matcher->is_positioned()) return std::nullopt;
    if (sequence.matcher->must_end()) return FinishReason::kStop;
  }
  if (sequence.output_count() >= sequence.request.max_tokens) return FinishReason::kLength;
  if (sequence.tokens.size() >= state_.options.context_length) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace millrace::sched
