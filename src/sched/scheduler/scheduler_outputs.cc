// What comes back for a plan: whether it answers it, the tokens and scores it brings, what its runs say of the costs.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sched/scheduler/scheduler.h"

namespace millrace::sched {
namespace {

/// Rows of the slice whose successor is known and whose score was asked for.
size_t scores_of(const PlanSlice& slice) {
  return slice.prompt_top_logprobs < 0 ? 0 : slice.token_count - (slice.next_token < 0 ? 1 : 0);
}

GenerateEvent faulty(const Sequence& sequence, tensor::LogitFault fault) {
  GenerateEvent event;
  if (sequence.matcher && fault == tensor::LogitFault::kAllNegativeInfinity) {
    event.error = Error{ErrorCode::kInvalidArgument,
                        "no token is left to draw: what the grammar allows is forbidden by min_tokens or logit_bias"};
    return event;
  }
  event.error =
      make_error(ErrorCode::kInternal,
                 "the model gives no distribution for this sequence of {} tokens: its logits hold {} (a broken "
                 "checkpoint, or an overflow)",
                 sequence.tokens.size(), tensor::to_string(fault));
  return event;
}

}  // namespace

Result<void> Scheduler::check(const PlanOutput& output) const {
  const auto id = output.id.value();
  if (in_flight_.empty()) return make_error(ErrorCode::kData, "an output of plan {}, where none is in flight", id);
  const uint64_t oldest = plan_count_ - in_flight_.size();
  const std::vector<PlanSlice>& planned = in_flight_.front().slices;
  if (id != oldest) return make_error(ErrorCode::kData, "an output of plan {}, wanted that of plan {}", id, oldest);
  if (output.slices.size() != planned.size()) {
    return make_error(ErrorCode::kData, "plan {}: {} slices in its output, {} planned", id, output.slices.size(),
                      planned.size());
  }
  for (size_t i = 0; i < planned.size(); ++i) {
    const SliceOutput& found = output.slices[i];
    const size_t draws = planned[i].sample_count();
    const size_t scores = scores_of(planned[i]);
    const bool faulty = found.fault != tensor::LogitFault::kNone;
    const bool as_planned = found.samples.size() == draws && found.scores.size() == scores;
    if (faulty ? found.samples.size() < std::max<size_t>(draws, 1) : as_planned) continue;
    return make_error(ErrorCode::kData, "plan {}, slice {}: {} tokens and {} scores, wanted {} and {}", id, i,
                      found.samples.size(), found.scores.size(), draws, scores);
  }
  return {};
}

std::vector<SequenceUpdate> Scheduler::complete(const PlanOutput& output) {
  CHECK(!in_flight_.empty(), "an output without a plan in flight");
  const InFlight plan = std::move(in_flight_.front());
  in_flight_.pop_front();
  CHECK(output.slices.size() == plan.slices.size(), "plan {}: {} slices in its output, {} planned", output.id.value(),
        output.slices.size(), plan.slices.size());
  observe(output.reports);
  if (profile_ && profile_->finished() && in_flight_.empty()) {
    finish_profile();
  }
  std::vector<SequenceUpdate> updates;
  updates.reserve(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const auto found = sequences_.find(plan.sequences[i]);
    if (found == sequences_.end()) continue;
    auto event = book(*found->second, output.slices[i]);
    if (!event) continue;
    if (event->last()) remove(*found->second);
    updates.push_back({plan.sequences[i], std::move(*event)});
  }
  return updates;
}

void Scheduler::observe(const std::vector<StageReport>& reports) {
  const uint64_t oldest = plan_count_ - shapes_.size();
  for (const StageReport& report : reports) {
    const uint64_t plan = report.plan.value();
    if (plan < oldest || plan >= plan_count_ || report.stage.value() >= options_.stage_count) continue;
    observe(report, shapes_[plan - oldest]);
  }
}

void Scheduler::observe(const StageReport& report, const std::optional<BatchShape>& shape) {
  if (profile_) {
    if (shape) profile_->record(report, *shape);
    return;
  }
  if (shape) chunker_.observe(report.stage, *shape, static_cast<double>(report.run_ns()) * 1e-3);
  if (!contention_estimator_) return;
  const double prompt_share = isolated_costs_.prompt_share(report.stage, shape.value_or(BatchShape{}));
  for (const ContentionEstimator::IsolatedRun& alone : contention_estimator_->add(
           {report.stage, report.plan.value(), shape, report.begin_ns, report.end_ns, prompt_share})) {
    isolated_costs_.observe(alone.stage, alone.shape, alone.run_us);
  }
}

std::optional<GenerateEvent> Scheduler::book(Sequence& sequence, const SliceOutput& slice) {
  CHECK(sequence.in_flight > 0);
  --sequence.in_flight;
  if (slice.fault != tensor::LogitFault::kNone && slice.samples.empty()) return faulty(sequence, slice.fault);
  // Sent back meanwhile, it has lost the scores of its prompt: they are computed again, and the same token after them.
  if (sequence.wants_prompt_logprobs() && !sequence.running) return std::nullopt;
  book_prompt_logprobs(sequence, slice);
  const bool scored =
      sequence.request.max_tokens == 0 && sequence.running && sequence.in_flight == 0 && sequence.unscheduled() == 0;
  if (slice.samples.empty() && !scored) return std::nullopt;
  GenerateEvent event;
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

// The first, and behind each draft that is what was drawn before it the next; others were drawn behind what is not
// there.
void Scheduler::book_samples(Sequence& sequence, const SliceOutput& slice, GenerateEvent& event) {
  const std::vector<Draft> drafts = std::exchange(sequence.drafts, {});
  size_t booked = 0;
  for (bool goes_on = true; goes_on && booked < slice.samples.size(); ++booked) {
    const tensor::SampleResult& sample = slice.samples[booked];
    sequence.tokens.push_back(sample.token);
    if (auto followed = follow_grammar(sequence); followed.has_error()) {
      event.error = followed.error();
      break;
    }
    event.tokens.push_back(sample.token);
    if (sequence.request.sampling.top_logprobs >= 0) event.logprobs.push_back(sample.logprobs);
    event.finish = finish_reason(sequence);
    goes_on = !event.last() && booked < drafts.size() && drafts[booked].token == sample.token;
    // Behind it nothing can be drawn.
    if (goes_on && booked + 1 == slice.samples.size()) event.error = faulty(sequence, slice.fault).error;
  }
  book_drafts(sequence, drafts, event.tokens.empty() ? 0 : event.tokens.size() - 1, event);
}

/// By the token drawn last; finds what may come next while the output of other plans is on its way.
Result<void> Scheduler::follow_grammar(Sequence& sequence) {
  if (!sequence.matcher) return {};
  const TokenId token = sequence.tokens.back();
  if (!sequence.matcher->advance(token)) {
    return make_error(ErrorCode::kInternal, "token {} was drawn, which the grammar does not allow", token);
  }
  sequence.allowed = sequence.matcher->allowed();
  if (sequence.allowed != nullptr || sequence.matcher->must_end()) return {};
  return make_error(
      ErrorCode::kInvalidArgument,
      "the answer cannot go on behind {} tokens: none of the model spells what the grammar wants, or it can be "
      "matched in too many ways there",
      sequence.output_count());
}

void Scheduler::book_prompt_logprobs(Sequence& sequence, const SliceOutput& slice) {
  if (!sequence.wants_prompt_logprobs()) return;
  if (sequence.prompt_logprobs.empty()) {
    sequence.prompt_logprobs.push_back({.token = sequence.tokens.front(), .logprob = std::nanf("")});
  }
  sequence.prompt_logprobs.insert(sequence.prompt_logprobs.end(), slice.scores.begin(), slice.scores.end());
}

std::optional<FinishReason> Scheduler::finish_reason(const Sequence& sequence) const {
  const auto& stops = sequence.request.sampling.stop_token_ids;
  if (sequence.output_count() >= sequence.request.sampling.min_tokens &&
      std::find(stops.begin(), stops.end(), sequence.tokens.back()) != stops.end()) {
    return FinishReason::kStop;
  }
  if (sequence.matcher && sequence.matcher->must_end()) return FinishReason::kStop;
  if (sequence.output_count() >= sequence.request.max_tokens) return FinishReason::kLength;
  if (sequence.tokens.size() >= options_.context_length) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace millrace::sched
