#include "sched/scheduler/output_processor.h"

#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

/// Books an output of the oldest plan in flight, which has one slice.
std::vector<SequenceUpdate> book(SchedulerParts& parts, SliceOutput slice) {
  const InFlightPlan plan = std::move(parts.state.in_flight.front());
  parts.state.in_flight.pop_front();
  PlanOutput output;
  output.slices.push_back(std::move(slice));
  return parts.outputs.book(plan, output);
}

Sequence& add(SchedulerParts& parts, GenerateRequest request) {
  request.prompt = {1, 2, 3, 4};
  parts.queue.add(SequenceId(1), std::move(request));
  return *parts.state.find(SequenceId(1));
}

/// Starts a sequence that expects 101, 102 and 103 after its first token, and puts them into its next step.
Sequence& step_with_drafts(SchedulerParts& parts) {
  Sequence& sequence = add(parts, {.max_tokens = 10, .prediction = {100, 101, 102, 103}});
  (void)parts.run(sequence);
  (void)parts.answer(100);
  parts.begin_turn();
  parts.decodes.plan();
  (void)parts.builder.take();
  REQUIRE(sequence.drafts.size() == 3);
  return sequence;
}

SchedulerOptions draft_options() {
  auto options = small_options();
  options.draft_tokens = 3;
  return options;
}

}  // namespace

TEST_CASE("an output must belong to the oldest plan in flight") {
  SchedulerParts parts(small_options());
  REQUIRE(parts.outputs.check({}).error().code == ErrorCode::kData);
  (void)parts.run(parts.add(1, 4));
  PlanOutput output;
  output.slices.emplace_back().samples.resize(1);
  REQUIRE_FALSE(parts.outputs.check(output).has_error());
  output.id = PlanId(1);
  REQUIRE(parts.outputs.check(output).error().code == ErrorCode::kData);
}

TEST_CASE("an output must have what each slice wants") {
  SchedulerParts parts(small_options());
  (void)parts.run(parts.add(1, 4));
  PlanOutput output;
  REQUIRE(parts.outputs.check(output).error().code == ErrorCode::kData);
  SliceOutput& slice = output.slices.emplace_back();
  REQUIRE(parts.outputs.check(output).has_error());  // no sample
  slice.fault = tensor::LogitFault::kNan;
  REQUIRE_FALSE(parts.outputs.check(output).has_error());  // but the reason why
  slice.samples.resize(1);
  REQUIRE(parts.outputs.check(output).has_error());  // both can't be
  slice.fault = tensor::LogitFault::kNone;
  slice.scores.resize(1);
  REQUIRE(parts.outputs.check(output).has_error());  // nothing was scored
}

TEST_CASE("a sampled token is booked with its logprobs if wanted") {
  SchedulerParts parts(small_options());
  const bool wants_logprobs = GENERATE(true, false);
  GenerateRequest request;
  request.sampling.top_logprobs = wants_logprobs ? 0 : -1;
  Sequence& sequence = add(parts, std::move(request));
  (void)parts.run(sequence);
  const auto updates = book(parts, {.samples = {{.token = 7, .logprobs = {.token = 7, .logprob = -0.5F}}}});
  REQUIRE(updates.size() == 1);
  REQUIRE(updates[0].id == SequenceId(1));
  REQUIRE(updates[0].event.tokens == std::vector<TokenId>{7});
  REQUIRE(updates[0].event.logprobs.size() == (wants_logprobs ? 1 : 0));
  REQUIRE_FALSE(updates[0].event.last());
  REQUIRE(sequence.tokens.back() == 7);
  REQUIRE(sequence.in_flight == 0);
}

TEST_CASE("sequences end by stop token and length and are removed") {
  SchedulerParts parts(small_options());
  GenerateRequest request;
  SECTION("a stop token") {
    request.sampling.stop_token_ids = {7};
    (void)parts.run(add(parts, std::move(request)));
    REQUIRE(parts.answer(7)[0].event.finish == FinishReason::kStop);
  }
  SECTION("max_tokens") {
    request.max_tokens = 1;
    (void)parts.run(add(parts, std::move(request)));
    REQUIRE(parts.answer(7)[0].event.finish == FinishReason::kLength);
  }
  SECTION("the context") {
    (void)parts.run(parts.add(5, 63, 10));
    REQUIRE(parts.answer(7)[0].event.finish == FinishReason::kLength);
  }
  REQUIRE(parts.state.sequences.empty());
  REQUIRE(parts.state.cache.available_pages() == 32);
}

TEST_CASE("a stop token counts only after min_tokens") {
  SchedulerParts parts(small_options());
  GenerateRequest request;
  request.sampling.stop_token_ids = {7};
  request.sampling.min_tokens = 2;
  (void)parts.run(add(parts, std::move(request)));
  REQUIRE_FALSE(parts.answer(7)[0].event.last());
}

TEST_CASE("the output of a removed sequence is dropped") {
  SchedulerParts parts(small_options());
  Sequence& sequence = parts.add(1, 4);
  (void)parts.run(sequence);
  parts.state.remove(sequence);
  REQUIRE(parts.answer().empty());
}

TEST_CASE("logits without a distribution end a sequence with an error") {
  SchedulerParts parts(small_options());
  (void)parts.run(parts.add(1, 4));
  const auto updates = book(parts, {.fault = tensor::LogitFault::kNan});
  REQUIRE(updates[0].event.error->code == ErrorCode::kInternal);
  REQUIRE(parts.state.sequences.empty());
}

TEST_CASE("accepted drafts are output with the token after them") {
  SchedulerParts parts(draft_options());
  Sequence& sequence = step_with_drafts(parts);
  const auto updates = book(parts, {.samples = {{.token = 101}, {.token = 102}, {.token = 55}, {.token = 104}}});
  const GenerateEvent& event = updates.at(0).event;
  REQUIRE(event.tokens == std::vector<TokenId>{101, 102, 55});
  REQUIRE(event.accepted_predictions == 2);
  REQUIRE(event.rejected_predictions == 1);
  REQUIRE(sequence.scheduled + 1 == sequence.tokens.size());
  REQUIRE(sequence.drafts.empty());
  const auto source = static_cast<size_t>(DraftSource::kPrediction);
  REQUIRE(parts.outputs.draft_counts().drafted[source] == 3);
  REQUIRE(parts.outputs.draft_counts().accepted[source] == 2);
  parts.state.check_invariants();
}

TEST_CASE("a fault counts only after accepted drafts") {
  SchedulerParts parts(draft_options());
  (void)step_with_drafts(parts);
  const TokenId sampled = GENERATE(101, 55);
  const auto updates = book(parts, {.fault = tensor::LogitFault::kNan, .samples = {{.token = sampled}}});
  REQUIRE(updates[0].event.tokens == std::vector<TokenId>{sampled});
  REQUIRE(updates[0].event.error.has_value() == (sampled == 101));
}

TEST_CASE("scores of a prompt come with its first token and once") {
  SchedulerParts parts(small_options());
  Sequence& sequence = add(parts, {.prompt_top_logprobs = 0});
  (void)parts.run(sequence);
  const auto updates = book(parts, {.samples = {{.token = 7}}, .scores = {{.token = 2}, {.token = 3}, {.token = 4}}});
  const auto& scores = updates.at(0).event.prompt_logprobs;
  REQUIRE(scores.size() == 4);
  REQUIRE(scores[0].token == 1);
  REQUIRE(std::isnan(scores[0].logprob));
  REQUIRE(scores[3].token == 4);
  REQUIRE_FALSE(sequence.wants_prompt_logprobs());
}

TEST_CASE("a prompt that is only scored ends with its last chunk") {
  SchedulerParts parts(small_options());
  Sequence& sequence = add(parts, {.max_tokens = 0, .prompt_top_logprobs = 0});
  parts.begin_turn();
  REQUIRE(parts.admission.admit(sequence, 1));
  parts.builder.add_slice(sequence, 2);
  (void)parts.builder.take();
  REQUIRE(book(parts, {.scores = {{.token = 2}, {.token = 3}}}).empty());
  parts.begin_turn();
  parts.builder.add_slice(sequence, 2);
  (void)parts.builder.take();
  const auto updates = book(parts, {.scores = {{.token = 4}}});
  REQUIRE(updates.at(0).event.finish == FinishReason::kLength);
  REQUIRE(updates[0].event.prompt_logprobs.size() == 4);
  REQUIRE(parts.state.sequences.empty());
}

TEST_CASE("scores of a retracted prompt are computed again") {
  SchedulerParts parts(small_options());
  Sequence& sequence = add(parts, {.prompt_top_logprobs = 0});
  (void)parts.run(sequence);
  parts.queue.put_back(sequence);
  REQUIRE(book(parts, {.samples = {{.token = 7}}, .scores = {{.token = 2}, {.token = 3}, {.token = 4}}}).empty());
  REQUIRE(sequence.tokens.size() == 4);
  REQUIRE(sequence.in_flight == 0);
}

namespace {

Sequence& add_pooled(SchedulerParts& parts, Pooling pooling) {
  return add(parts, {.max_tokens = 0, .pooling = pooling});
}

}  // namespace

TEST_CASE("a vector ends its sequence") {
  auto options = small_options();
  options.hidden_size = 2;
  SchedulerParts parts(options);
  (void)parts.run(add_pooled(parts, Pooling::kLast));
  PlanOutput output;
  SliceOutput& slice = output.slices.emplace_back();
  REQUIRE(parts.outputs.check(output).has_error());  // no vector
  slice.pooled = {1, 2, 3};
  REQUIRE(parts.outputs.check(output).has_error());  // one that is too long
  slice.pooled = {1, 2};
  REQUIRE_FALSE(parts.outputs.check(output).has_error());
  const auto updates = book(parts, slice);
  REQUIRE(updates[0].event.pooled == std::vector<float>{1, 2});
  REQUIRE(updates[0].event.finish == FinishReason::kStop);
  REQUIRE(parts.state.sequences.empty());
}

TEST_CASE("a vector that nobody wants breaks the ring") {
  SchedulerParts parts(small_options());
  (void)parts.run(parts.add(1, 4));
  PlanOutput output;
  output.slices.push_back({.samples = {{.token = 7}}, .pooled = {1}});
  REQUIRE(parts.outputs.check(output).error().code == ErrorCode::kData);
}

TEST_CASE("a fault of a vector is an error of its sequence") {
  SchedulerParts parts(small_options());
  (void)parts.run(add_pooled(parts, Pooling::kLast));
  const auto updates = book(parts, {.fault = tensor::LogitFault::kNan});
  REQUIRE(updates[0].event.error->code == ErrorCode::kInternal);
  REQUIRE(parts.state.sequences.empty());
}

TEST_CASE("a retracted sequence ends by the vector in flight") {
  SchedulerParts parts(small_options());
  Sequence& sequence = add_pooled(parts, Pooling::kMean);
  (void)parts.run(sequence);
  parts.queue.put_back(sequence);
  const auto updates = book(parts, {.pooled = {1}});
  REQUIRE(updates[0].event.finish == FinishReason::kStop);
  REQUIRE(parts.state.sequences.empty());
  REQUIRE(parts.state.waiting.empty());
}
