// Sequences whose token masks take long: they wait alone, and nothing else depends on how the work was divided.
#include <catch2/catch.hpp>
#include <map>

#include "grammar/regex_parser.h"
#include "sched/scheduler/scheduler.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

constexpr TokenId kFree = 20;

/// Returns a grammar over the letters a to e as tokens 10 to 14, not shared with other tests.
std::shared_ptr<const grammar::Grammar> letters(const char* pattern) {
  std::vector<std::string> texts(32);
  for (size_t i = 0; i < 5; ++i) texts[10 + i] = static_cast<char>('a' + i);
  grammar::Definition definition;
  definition.root = grammar::parse_regex(pattern).value();
  return grammar::Grammar::compile(definition, std::make_shared<const grammar::Vocabulary>(texts), {}).value();
}

SchedulerOptions options_with(uint64_t mask_steps) {
  return {.page_size = 4,
          .page_count = 32,
          .max_running = 4,
          .window = 1,
          .chunked_prefill_size = 16,
          .context_length = 64,
          .mask_steps = mask_steps};
}

GenerateRequest request(TokenId prompt, const char* pattern, uint32_t max_tokens = 10) {
  GenerateRequest made;
  made.prompt.assign(5, prompt);
  made.max_tokens = max_tokens;
  if (*pattern != '\0') made.grammar = letters(pattern);
  return made;
}

/// A scheduler with a model that draws the lowest allowed token, or kFree where all are allowed.
struct Rig : Scheduler {
  using Scheduler::Scheduler;
  std::map<int32_t, TokenMask> masks;  // the last stage's mask table

  [[nodiscard]] std::vector<SequenceUpdate> answer(const Plan& plan) {
    for (const MaskWrite& write : plan.masks) masks[static_cast<int32_t>(write.index)] = write.mask;
    PlanOutput output;
    size_t sample = 0;
    for (const PlanSlice& slice : plan.slices) {
      SliceOutput& made = output.slices.emplace_back();
      for (uint32_t i = 0; i < slice.sample_count(); ++i, ++sample) {
        const int32_t mask = plan.sample_masks.empty() ? -1 : plan.sample_masks[sample];
        made.samples.push_back({.token = mask < 0 ? kFree : masks.at(mask).members(1).at(0)});
      }
    }
    return complete(output);
  }
};

}  // namespace

TEST_CASE("A sequence whose mask takes long waits alone") {
  Rig scheduler(options_with(1));
  scheduler.add(SequenceId(1), request(1, "a[b-e]{3}a"));
  scheduler.add(SequenceId(2), request(2, ""));
  const auto prompts = scheduler.next();
  REQUIRE(prompts->slices.size() == 2);
  REQUIRE(scheduler.answer(*prompts).size() == 2);  // both tokens reach their clients at once
  REQUIRE(scheduler.masks_pending());
  for (int turn = 0; turn < 3; ++turn) {
    const auto plan = scheduler.next();
    REQUIRE(scheduler.newest_plan() == std::vector{SequenceId(2)});
    (void)scheduler.answer(*plan);
  }
  size_t slices = 0;
  while (scheduler.masks_pending()) {
    REQUIRE(scheduler.work_on_masks().empty());
    ++slices;
  }
  CHECK(slices > 3);
  const auto plan = scheduler.next();
  REQUIRE(plan->slices.size() == 2);
  scheduler.check_invariants();
}

TEST_CASE("An output that is complete ends when its position is known") {
  for (const uint64_t mask_steps : {uint64_t{1}, uint64_t{100'000}}) {
    INFO(mask_steps << " steps");
    Rig scheduler(options_with(mask_steps));
    scheduler.add(SequenceId(1), request(1, "a|b?a"));
    std::vector<SequenceUpdate> updates = scheduler.answer(*scheduler.next());
    REQUIRE(updates.size() == 1);
    REQUIRE(updates[0].event.tokens == std::vector<TokenId>{10});
    while (scheduler.masks_pending()) {
      for (SequenceUpdate& update : scheduler.work_on_masks()) updates.push_back(std::move(update));
    }
    CHECK(updates.back().event.finish == FinishReason::kStop);
    CHECK(updates.size() == (mask_steps == 1 ? 2 : 1));
    CHECK(scheduler.empty());
    scheduler.check_invariants();
  }
}

TEST_CASE("Small budgets of mask work give the same outputs") {
  std::vector<std::vector<TokenId>> outputs;
  for (const uint64_t mask_steps : {1, 7, 50, 100'000}) {
    SchedulerOptions options = options_with(mask_steps);
    options.draft_tokens = 3;
    Rig scheduler(options);
    scheduler.add(SequenceId(1), request(1, "(ab|cd)?a[b-e]{3}(abcde){2}", 9));
    scheduler.add(SequenceId(2), request(2, "[d-e]*.{4}", 12));
    std::vector<TokenId> tokens;
    std::vector<SequenceUpdate> updates;
    for (int turn = 0; turn < 2000 && !scheduler.empty(); ++turn) {
      if (auto plan = scheduler.next()) {
        updates = scheduler.answer(*plan);
      } else {
        updates = scheduler.work_on_masks();
      }
      for (const SequenceUpdate& update : updates) {
        if (update.id != SequenceId(1)) continue;
        tokens.insert(tokens.end(), update.event.tokens.begin(), update.event.tokens.end());
        if (update.event.finish) tokens.push_back(1000 + static_cast<TokenId>(*update.event.finish));
        REQUIRE_FALSE(update.event.error.has_value());
      }
    }
    REQUIRE(scheduler.empty());
    outputs.push_back(std::move(tokens));
  }
  for (const auto& tokens : outputs) CHECK(tokens == outputs.front());
}

TEST_CASE("A retracted sequence that awaits its mask stops nobody") {
  Rig scheduler(options_with(1));
  scheduler.add(SequenceId(1), request(1, "a[b-e]{3}a"));
  (void)scheduler.answer(*scheduler.next());
  REQUIRE(scheduler.masks_pending());
  (void)scheduler.pause(PauseMode::kRetract);
  scheduler.resume();
  scheduler.add(SequenceId(2), request(2, ""));
  const auto other = scheduler.next();
  REQUIRE(other.has_value());
  REQUIRE(scheduler.newest_plan() == std::vector{SequenceId(2)});
  (void)scheduler.answer(*other);
  while (scheduler.masks_pending()) REQUIRE(scheduler.work_on_masks().empty());
  REQUIRE(scheduler.next()->slices.size() == 2);
  scheduler.check_invariants();
}
