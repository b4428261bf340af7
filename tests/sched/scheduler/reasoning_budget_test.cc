#include "sched/scheduler/reasoning_budget.h"

#include <catch2/catch.hpp>
#include <map>

#include "grammar/ebnf.h"
#include "sched/plan/plan_output.h"
#include "sched/plan/request.h"
#include "sched/scheduler/scheduler.h"
#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

constexpr TokenId kWord = 1;
constexpr TokenId kOpen = 2;
constexpr TokenId kClose = 3;
constexpr TokenId kCall = 4;
constexpr TokenId kSilent = 5;  // a special token, which spells nothing

std::shared_ptr<const grammar::Vocabulary> vocabulary() {
  std::vector<std::string> texts(16);
  texts[kWord] = "word ";
  texts[kOpen] = "<think>";
  texts[kClose] = "</think>";
  texts[kCall] = "<call>";
  texts[6] = "</";
  texts[7] = "thi";
  texts[8] = "nk>";
  texts[9] = "\n";
  texts[10] = "\xE2";
  texts[11] = "\x82";
  texts[12] = "\xAC";
  texts[13] = "<th";
  texts[14] = "ink>\n";
  return std::make_shared<const grammar::Vocabulary>(texts);
}

std::shared_ptr<const ReasoningLimit> limit_of(uint32_t max_tokens, bool begins_inside,
                                               std::vector<TokenId> end_tokens = {kClose}) {
  return std::make_shared<const ReasoningLimit>(ReasoningLimit{.max_tokens = max_tokens,
                                                               .begins_inside = begins_inside,
                                                               .start = "<think>",
                                                               .end = "</think>",
                                                               .early_end = "<call>",
                                                               .end_tokens = std::move(end_tokens),
                                                               .vocabulary = vocabulary()});
}

/// Returns the token that must come next, or -1.
TokenId forced(const ReasoningBudget& budget, const TokenMask* allowed = nullptr) {
  const auto mask = budget.forced_mask(allowed);
  if (mask == nullptr) return -1;
  REQUIRE(mask->count() == 1);
  return mask->members(1).front();
}

/// Appends tokens of which none is forced.
void append_free(ReasoningBudget& budget, const std::vector<TokenId>& tokens) {
  for (const TokenId token : tokens) {
    REQUIRE(forced(budget) == -1);
    budget.append(token);
  }
}

}  // namespace

TEST_CASE("Reasoning is ended when it has its tokens") {
  ReasoningBudget opened(limit_of(3, true));
  REQUIRE(opened.free_tokens() == 3);
  append_free(opened, {kWord, kSilent});
  REQUIRE(opened.free_tokens() == 1);
  append_free(opened, {kWord});
  REQUIRE(opened.free_tokens() == 0);
  REQUIRE(forced(opened) == kClose);
  opened.append(kClose);
  REQUIRE(forced(opened) == -1);
  REQUIRE(opened.free_tokens() == SIZE_MAX);

  ReasoningBudget none(limit_of(0, true));
  REQUIRE(forced(none) == kClose);
}

TEST_CASE("Reasoning that the output opens counts from its tag on") {
  ReasoningBudget budget(limit_of(2, false));
  REQUIRE(budget.free_tokens() == 3);
  append_free(budget, {9, kOpen, kWord, kWord});
  REQUIRE(forced(budget) == kClose);

  ReasoningBudget in_pieces(limit_of(1, false));
  append_free(in_pieces, {13, 14, kWord});
  REQUIRE(forced(in_pieces) == kClose);
}

TEST_CASE("What is no reasoning has no bound") {
  ReasoningBudget content(limit_of(0, false));
  append_free(content, {kWord, kOpen, kWord});
  REQUIRE(content.free_tokens() == SIZE_MAX);

  ReasoningBudget closed(limit_of(2, true));
  append_free(closed, {kWord, kClose, kWord, kWord, kOpen, kWord, kWord, kWord});
  ReasoningBudget in_pieces(limit_of(3, true));
  append_free(in_pieces, {6, 7, 8, kWord, kWord});
  ReasoningBudget calls(limit_of(2, true));
  append_free(calls, {kWord, kCall, kWord, kWord});
}

TEST_CASE("An end of several tokens is forced token by token") {
  ReasoningBudget budget(limit_of(1, true, {6, 7, 8}));
  append_free(budget, {kWord});
  for (const TokenId token : {6, 7, 8}) {
    REQUIRE(forced(budget) == token);
    REQUIRE(budget.free_tokens() == 0);
    budget.append(token);
  }
  REQUIRE(forced(budget) == -1);
}

TEST_CASE("A character that the bound would split is completed first") {
  ReasoningBudget budget(limit_of(1, true));
  append_free(budget, {10, 11, 12});
  REQUIRE(forced(budget) == kClose);

  ReasoningBudget never_complete(limit_of(0, true));
  never_complete.append(10);
  append_free(never_complete, {10, 10});
  REQUIRE(forced(never_complete) == kClose);
}

TEST_CASE("A grammar that excludes the end postpones it") {
  ReasoningBudget budget(limit_of(1, true));
  budget.append(kWord);
  TokenMask without(16);
  without.add(kWord);
  REQUIRE(forced(budget, &without) == -1);
  without.add(kClose);
  REQUIRE(forced(budget, &without) == kClose);
}

namespace {

/// A scheduler with a model that draws kWord, or the lowest token that its mask has.
struct Model : Scheduler {
  using Scheduler::Scheduler;
  std::map<int32_t, TokenMask> masks;
  size_t max_rows = 0;  // of one slice that samples

  std::vector<TokenId> run(GenerateRequest request) {
    add(SequenceId(1), std::move(request));
    std::vector<TokenId> tokens;
    while (const auto plan = next()) {
      for (const MaskWrite& write : plan->masks) masks[static_cast<int32_t>(write.index)] = write.mask;
      PlanOutput output;
      output.id = plan->id;
      size_t sample = 0;
      for (const PlanSlice& slice : plan->slices) {
        SliceOutput& made = output.slices.emplace_back();
        max_rows = std::max<size_t>(max_rows, slice.sample_count());
        for (uint32_t i = 0; i < slice.sample_count(); ++i, ++sample) {
          const int32_t mask = plan->sample_masks.empty() ? -1 : plan->sample_masks[sample];
          const bool is_free = mask < 0 || masks.at(mask).contains(kWord);
          made.samples.push_back({.token = is_free ? kWord : masks.at(mask).members(1).at(0)});
        }
      }
      for (const SequenceUpdate& update : complete(output)) {
        REQUIRE_FALSE(update.event.error.has_value());
        tokens.insert(tokens.end(), update.event.tokens.begin(), update.event.tokens.end());
      }
      check_invariants();
    }
    return tokens;
  }
};

GenerateRequest reasoning_request(uint32_t budget) {
  GenerateRequest request;
  request.prompt.assign(5, kWord);
  request.max_tokens = 12;
  request.reasoning_limit = limit_of(budget, true, {6, 7, 8});
  request.prediction.assign(20, kWord);
  return request;
}

}  // namespace

TEST_CASE("Drafts end before the end of reasoning that is forced") {
  for (const uint32_t drafts : {0U, 1U, 3U, 7U}) {
    INFO(drafts << " drafts");
    for (const uint32_t budget : {0U, 1U, 4U, 5U}) {
      Model model(draft_options(drafts));
      std::vector<TokenId> wanted(budget, kWord);
      wanted.insert(wanted.end(), {6, 7, 8});
      wanted.resize(12, kWord);
      REQUIRE(model.run(reasoning_request(budget)) == wanted);
      REQUIRE((model.max_rows > 1) == (drafts > 0));
    }
  }
}

TEST_CASE("A response format applies after reasoning that was ended") {
  grammar::Definition definition;
  definition.root = grammar::parse_ebnf("root ::= \"word \"+ \"</think>\" \"\\n\" \"<call>\"", definition).value();
  GenerateRequest request = reasoning_request(3);
  request.grammar = grammar::Grammar::compile(definition, vocabulary(), {}).value();
  Model model(draft_options(3));
  REQUIRE(model.run(std::move(request)) == std::vector<TokenId>{kWord, kWord, kWord, 6, 7, 8, 9, kCall});
}
