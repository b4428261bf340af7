#include <catch2/catch.hpp>
#include <numeric>

#include "grammar/ebnf.h"
#include "sched/scheduler/scheduler.h"
#include "sched/scheduler/scheduler_parts.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

/// Returns a request whose output will be 100, 101, …
GenerateRequest predicted(std::vector<TokenId> prediction, uint32_t max_tokens = 20) {
  GenerateRequest made;
  made.prompt = {1, 2, 3, 4};
  made.max_tokens = max_tokens;
  made.prediction = std::move(prediction);
  return made;
}

std::vector<TokenId> counted(TokenId from, size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

/// The model counts from 100 after every prompt.
TokenId successor(TokenId token) {
  return token < 100 ? 100 : token + 1;
}

PlanOutput output_of(const Plan& plan) {
  PlanOutput output;
  size_t end = 0;
  for (const PlanSlice& slice : plan.slices) {
    end += slice.token_count;
    SliceOutput& made = output.slices.emplace_back();
    for (size_t at = end - slice.sample_count(); at < end; ++at)
      made.samples.push_back({.token = successor(plan.tokens[at])});
  }
  return output;
}

/// A scheduler that numbers the outputs that it takes.
struct Rig : Scheduler {
  using Scheduler::Scheduler;
  uint64_t answered = 0;
  [[nodiscard]] std::vector<SequenceUpdate> take(PlanOutput output) {
    output.id = PlanId(answered++);
    REQUIRE_FALSE(check(output).has_error());
    auto updates = complete(output);
    check_invariants();
    return updates;
  }
};

/// One plan and the event of its only sequence.
struct Step {
  Plan plan;
  GenerateEvent event;
};
Step step(Rig& scheduler) {
  Step made;
  made.plan = scheduler.next().value();
  REQUIRE(made.plan.slices.size() == 1);
  auto updates = scheduler.take(output_of(made.plan));
  REQUIRE(updates.size() == 1);
  made.event = std::move(updates.front().event);
  return made;
}

}  // namespace

TEST_CASE("a step outputs the accepted drafts and one more token") {
  Rig scheduler(draft_options(3));
  scheduler.add(SequenceId(1), predicted(counted(100, 20)));
  REQUIRE(step(scheduler).event.tokens == std::vector<TokenId>{100});
  const Step first = step(scheduler);
  REQUIRE(first.plan.tokens == std::vector<TokenId>{100, 101, 102, 103});
  REQUIRE(first.plan.slices[0].draft_count == 3);
  REQUIRE(first.plan.slices[0].prefix == 4);
  REQUIRE(first.event.tokens == std::vector<TokenId>{101, 102, 103, 104});
  REQUIRE(first.event.accepted_predictions == 3);
  REQUIRE(first.event.rejected_predictions == 0);
  const Step second = step(scheduler);
  REQUIRE(second.plan.slices[0].prefix == 8);
  REQUIRE(second.plan.tokens == std::vector<TokenId>{104, 105, 106, 107});
  REQUIRE(scheduler.draft_counts().accepted[static_cast<size_t>(DraftSource::kPrediction)] == 6);
}

TEST_CASE("with states the next step replays accepted drafts") {
  auto options = draft_options(3);
  options.windows = {{.kind = GroupKind::kState}};
  Rig scheduler(options);
  scheduler.add(SequenceId(1), predicted({100, 101, 102, 103, 104, 55, 106, 107, 108}, 12));
  REQUIRE(step(scheduler).event.tokens == std::vector<TokenId>{100});
  // A draft costs two rows, so that one less than without states is worth it.
  const Step first = step(scheduler);
  REQUIRE(first.plan.tokens == std::vector<TokenId>{100, 101, 102});
  REQUIRE(first.plan.slices[0].prefix == 4);
  REQUIRE(first.event.tokens == std::vector<TokenId>{101, 102, 103});
  const auto begins_with = [](const Plan& plan, std::vector<TokenId> tokens) {
    return std::equal(tokens.begin(), tokens.end(), plan.tokens.begin()) &&
           plan.slices[0].token_count == tokens.size() + plan.slices[0].draft_count;
  };
  const Step second = step(scheduler);
  REQUIRE(second.plan.slices[0].prefix == 5);  // after the token before the drafts
  REQUIRE(begins_with(second.plan, {101, 102, 103}));
  REQUIRE(second.event.tokens == std::vector<TokenId>{104, 105});
  const Step third = step(scheduler);
  REQUIRE(third.plan.slices[0].prefix == 8);
  REQUIRE(begins_with(third.plan, {104, 105}));
  REQUIRE(third.event.tokens.front() == 106);
}

TEST_CASE("what was drawn otherwise is computed again from there") {
  Rig scheduler(draft_options(3));
  scheduler.add(SequenceId(1), predicted({100, 101, 55, 103, 104, 105, 106}));
  (void)step(scheduler);
  const Step first = step(scheduler);
  REQUIRE(first.plan.tokens == std::vector<TokenId>{100, 101, 55, 103});
  REQUIRE(first.event.tokens == std::vector<TokenId>{101, 102});
  REQUIRE(first.event.accepted_predictions == 1);
  REQUIRE(first.event.rejected_predictions == 2);
  const Step second = step(scheduler);
  REQUIRE(second.plan.slices[0].prefix == 6);
  REQUIRE(second.plan.tokens == std::vector<TokenId>{102, 103, 104});  // fewer, since it was wrong
  REQUIRE(second.event.tokens == std::vector<TokenId>{103, 104, 105});
}

TEST_CASE("no more is drafted than may be drawn") {
  Rig scheduler(draft_options(8));
  SECTION("by max_tokens") {
    scheduler.add(SequenceId(1), predicted(counted(100, 20), 5));
    (void)step(scheduler);
    const Step last = step(scheduler);
    REQUIRE(last.plan.slices[0].draft_count == 3);
    REQUIRE(last.event.tokens.size() == 4);
    REQUIRE(last.event.finish == FinishReason::kLength);
  }
  SECTION("before a stop token") {
    auto request = predicted(counted(100, 20));
    request.sampling.stop_token_ids = {103};
    scheduler.add(SequenceId(1), std::move(request));
    (void)step(scheduler);
    const Step last = step(scheduler);
    REQUIRE(last.plan.tokens == std::vector<TokenId>{100, 101, 102});
    REQUIRE(last.event.tokens == std::vector<TokenId>{101, 102, 103});
    REQUIRE(last.event.finish == FinishReason::kStop);
  }
  SECTION("by the context") {
    auto options = draft_options(8);
    options.context_length = 9;
    Rig narrow(options);
    narrow.add(SequenceId(1), predicted(counted(100, 20)));
    (void)step(narrow);
    const Step last = step(narrow);
    REQUIRE(last.plan.slices[0].draft_count == 3);
    REQUIRE(last.event.finish == FinishReason::kLength);
    REQUIRE(last.event.tokens == std::vector<TokenId>{101, 102, 103, 104});
  }
  SECTION("by the pages, for which nobody has to go") {
    auto options = draft_options(8);
    options.page_count = 2;
    options.context_length = 8;
    options.share_prefixes = false;
    Rig scarce(options);
    scarce.add(SequenceId(1), predicted(counted(100, 20)));
    scarce.add(SequenceId(2), predicted(counted(100, 20)));
    (void)step(scarce);
    REQUIRE(step(scarce).plan.slices[0].draft_count == 2);
    REQUIRE(scarce.retraction_count() == 0);
  }
}

TEST_CASE("an output ends at its stop token even amid drafts") {
  Rig scheduler(draft_options(8));
  auto request = predicted(counted(100, 20));
  request.sampling.stop_token_ids = {103};
  request.sampling.min_tokens = 3;
  scheduler.add(SequenceId(1), std::move(request));
  (void)step(scheduler);
  auto plan = scheduler.next();
  PlanOutput output = output_of(*plan);
  output.slices[0].samples[1].token = 103;  // instead of 102
  const auto updates = scheduler.take(output);
  REQUIRE(updates[0].event.tokens == std::vector<TokenId>{101, 103});
  REQUIRE(updates[0].event.finish == FinishReason::kStop);
  REQUIRE(scheduler.empty());
}

TEST_CASE("a fault ends the request only after an accepted draft") {
  Rig scheduler(draft_options(3));
  scheduler.add(SequenceId(1), predicted({100, 101, 55, 103}));
  (void)step(scheduler);
  const auto plan = scheduler.next();
  PlanOutput output = output_of(*plan);
  SECTION("behind a wrong one") {
    output.slices[0].samples.resize(2);
    output.slices[0].fault = tensor::LogitFault::kNan;
    const auto updates = scheduler.take(output);
    REQUIRE(updates[0].event.tokens == std::vector<TokenId>{101, 102});
    REQUIRE_FALSE(updates[0].event.last());
  }
  SECTION("behind a right one") {
    output.slices[0].samples.resize(1);
    output.slices[0].fault = tensor::LogitFault::kNan;
    const auto updates = scheduler.take(output);
    REQUIRE(updates[0].event.tokens == std::vector<TokenId>{101});
    REQUIRE(updates[0].event.error->message.find("no distribution") != std::string::npos);
    REQUIRE(scheduler.empty());
  }
  SECTION("all draws and a fault cannot be") {
    output.slices[0].fault = tensor::LogitFault::kNan;
    output.id = PlanId(1);
    REQUIRE(scheduler.check(output).error().code == ErrorCode::kData);
    REQUIRE_THAT(scheduler.check(output).error().message, test::Mentions("plan 1", "slice 0", "4", "0", "4", "0"));
  }
  SECTION("nor can fewer without one") {
    output.slices[0].samples.pop_back();
    output.id = PlanId(1);
    REQUIRE(scheduler.check(output).error().code == ErrorCode::kData);
    REQUIRE_THAT(scheduler.check(output).error().message, test::Mentions("plan 1", "slice 0", "3", "0", "4", "0"));
  }
}

TEST_CASE("a sequence retracted with drafts in flight resumes") {
  Rig scheduler(draft_options(3));
  scheduler.add(SequenceId(1), predicted(counted(100, 20)));
  (void)step(scheduler);
  const auto plan = scheduler.next();
  REQUIRE(plan->slices[0].draft_count == 3);
  (void)scheduler.pause(PauseMode::kRetract);
  const auto updates = scheduler.take(output_of(*plan));
  REQUIRE(updates[0].event.tokens == std::vector<TokenId>{101, 102, 103, 104});
  scheduler.check_invariants();
  scheduler.resume();
  const Step again = step(scheduler);
  REQUIRE(again.plan.closes.size() == 1);
  REQUIRE(again.plan.tokens.back() == 104);
  REQUIRE(again.event.tokens == std::vector<TokenId>{105});
}

TEST_CASE("no token that is only drafted becomes known to the cache") {
  Rig scheduler(draft_options(4));
  scheduler.add(SequenceId(1), predicted({100, 50, 51, 52, 53, 54, 55, 56, 57}));
  (void)step(scheduler);
  const auto plan = scheduler.next();
  REQUIRE(plan->slices[0].draft_count == 4);
  GenerateRequest same;
  same.prompt = {1, 2, 3, 4, 100, 50, 51, 52, 53, 54};
  same.max_tokens = 1;
  scheduler.add(SequenceId(2), std::move(same));
  (void)scheduler.take(output_of(*plan));
  const auto next = scheduler.next();
  REQUIRE(next->opens.size() == 1);
  REQUIRE(next->opens[0].cached_length == 4);
}

TEST_CASE("unlikely drafts are left out and tried again later") {
  Rig scheduler(draft_options(4));
  // Every second token differs, so that at most one draft in a row is accepted.
  std::vector<TokenId> prediction = counted(100, 40);
  for (size_t i = 1; i < prediction.size(); i += 2) prediction[i] = 50;
  scheduler.add(SequenceId(1), predicted(prediction, 40));
  size_t drafted = 0;
  size_t steps = 0;
  for (; !scheduler.empty(); ++steps) drafted += step(scheduler).plan.slices[0].draft_count;
  REQUIRE(steps > 20);
  REQUIRE(drafted < 2 * steps);
  REQUIRE(drafted > 0);
}

namespace {

std::shared_ptr<const grammar::Grammar> some_grammar(const char* text) {
  std::vector<std::string> texts(128);
  texts[10] = "n";
  texts[11] = "na";
  texts[12] = "name";
  texts[13] = ":";
  texts[14] = "x";
  texts[15] = "y";
  texts[16] = "m";
  texts[17] = "me";
  texts[18] = "a";
  texts[19] = "e";
  grammar::Definition definition;
  definition.root = grammar::parse_ebnf(text, definition).value();
  return grammar::Grammar::compile(definition, std::make_shared<const grammar::Vocabulary>(texts), {}).value();
}

/// Makes a plan and samples these tokens.
Step step_with(Rig& scheduler, const std::vector<TokenId>& drawn) {
  Step made;
  made.plan = scheduler.next().value();
  PlanOutput output;
  output.slices.emplace_back();
  for (const TokenId token : drawn) output.slices[0].samples.push_back({.token = token});
  auto updates = scheduler.take(output);
  made.event = std::move(updates.front().event);
  return made;
}

}  // namespace

TEST_CASE("forced tokens are drafted with the masks after them") {
  Rig scheduler(draft_options(8));
  GenerateRequest request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 20;
  request.grammar = some_grammar("root ::= [xy] \"name:\" [xy] \"name:\" [xy]");
  scheduler.add(SequenceId(1), std::move(request));
  const Step first = step_with(scheduler, {14});
  REQUIRE(first.plan.sample_masks.size() == 1);
  const Step second = step_with(scheduler, {12, 13, 15});
  REQUIRE(second.plan.tokens == std::vector<TokenId>{14, 12, 13});
  REQUIRE(second.plan.slices[0].draft_count == 2);
  REQUIRE(second.plan.sample_masks.size() == 3);
  const auto mask_at = [&](size_t draw) {
    for (const MaskWrite& write : second.plan.masks) {
      if (static_cast<int32_t>(write.index) == second.plan.sample_masks[draw]) return write.mask.members(9);
    }
    for (const MaskWrite& write : first.plan.masks) {
      if (static_cast<int32_t>(write.index) == second.plan.sample_masks[draw]) return write.mask.members(9);
    }
    return std::vector<TokenId>();
  };
  REQUIRE(mask_at(0) == std::vector<TokenId>{10, 11, 12});
  REQUIRE(mask_at(1) == std::vector<TokenId>{13});
  REQUIRE(mask_at(2) == std::vector<TokenId>{14, 15});
  REQUIRE(second.event.tokens == std::vector<TokenId>{12, 13, 15});
  // The model may cut the text into other tokens: the rest of the text is drafted then.
  const Step third = step_with(scheduler, {11, 12, 13});
  REQUIRE(third.event.tokens == std::vector<TokenId>{11});
  const Step fourth = step_with(scheduler, {17, 13, 14});
  REQUIRE(fourth.plan.tokens == std::vector<TokenId>{11, 17, 13});
  REQUIRE(fourth.event.tokens == std::vector<TokenId>{17, 13, 14});
  REQUIRE(fourth.event.finish == FinishReason::kStop);
}

TEST_CASE("a prediction that the grammar does not allow is cut there") {
  Rig scheduler(draft_options(8));
  GenerateRequest request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 20;
  request.grammar = some_grammar("root ::= [xy]+ \":\"");
  request.prediction = {14, 15, 15, 12, 14};
  scheduler.add(SequenceId(1), std::move(request));
  (void)step_with(scheduler, {14});
  const Step second = step_with(scheduler, {15, 15, 14});
  REQUIRE(second.plan.tokens == std::vector<TokenId>{14, 15, 15});
  REQUIRE(second.event.tokens == std::vector<TokenId>{15, 15, 14});
}

TEST_CASE("a draft costs what a row costs beside the others") {
  CostModel costs;
  BatchShape one{.decode_count = 1, .decode_context = 100};
  REQUIRE(costs.extra_row_cost(one) == 0.25);  // nothing is known
  for (uint32_t n = 1; n <= 64; n *= 2) {
    for (int i = 0; i < 4; ++i) {
      costs.observe(StageId(0), {.decode_count = static_cast<double>(n)}, 1000 + 10 * n);
      costs.observe(StageId(0), {.prefill_tokens = 100.0 * n}, 1000 + 1000 * n);
    }
  }
  REQUIRE(costs.usable());
  REQUIRE(costs.extra_row_cost({.decode_count = 1}) == Approx(10.0 / 1010).epsilon(0.05));
  REQUIRE(costs.extra_row_cost({.decode_count = 100}) == Approx(1000.0 / 2000).epsilon(0.05));
}
