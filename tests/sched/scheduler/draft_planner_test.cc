#include "sched/scheduler/draft_planner.h"

#include "grammar/ebnf.h"
#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

constexpr double kCheapRow = 0.01;

SchedulerOptions draft_options() {
  auto options = small_options();
  options.draft_tokens = 4;
  return options;
}

GenerateRequest predicted(std::vector<TokenId> prediction) {
  GenerateRequest request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 20;
  request.prediction = std::move(prediction);
  return request;
}

/// Queues the request and books `token` as its first sample.
Sequence& start(SchedulerParts& parts, GenerateRequest request, TokenId token) {
  parts.queue.add(SequenceId(1), std::move(request));
  Sequence& sequence = *parts.state.find(SequenceId(1));
  (void)parts.run(sequence);
  (void)parts.answer(token);
  return sequence;
}

std::vector<TokenId> tokens_of(const std::vector<Draft>& drafts) {
  std::vector<TokenId> tokens;
  for (const Draft& draft : drafts) tokens.push_back(draft.token);
  return tokens;
}

std::shared_ptr<const grammar::Grammar> letters(const char* text) {
  std::vector<std::string> texts(32);
  texts[10] = "a";
  texts[11] = "b";
  texts[12] = "c";
  grammar::Definition definition;
  definition.root = grammar::parse_ebnf(text, definition).value();
  return grammar::Grammar::compile(definition, std::make_shared<const grammar::Vocabulary>(texts), {}).value();
}

}  // namespace

TEST_CASE("a prediction is drafted up to the bound of one step") {
  SchedulerParts parts(draft_options());
  DraftPlanner planner(parts.state);
  Sequence& sequence = start(parts, predicted({100, 101, 102, 103, 104, 105}), 100);
  const auto drafts = planner.propose(sequence, 0, kCheapRow);
  REQUIRE(tokens_of(drafts) == std::vector<TokenId>{101, 102, 103, 104});
  REQUIRE(drafts[0].source == DraftSource::kPrediction);
}

TEST_CASE("drafts end with max_tokens and the rows of the plan") {
  auto options = draft_options();
  options.max_running = 2;  // 8 rows of drafts
  SchedulerParts parts(options);
  DraftPlanner planner(parts.state);
  GenerateRequest request = predicted({100, 101, 102, 103, 104, 105});
  request.max_tokens = 4;
  Sequence& sequence = start(parts, std::move(request), 100);
  REQUIRE(planner.propose(sequence, 0, kCheapRow).size() == 2);  // and the sampled token after them
  REQUIRE(planner.propose(sequence, 7, kCheapRow).size() == 1);
  REQUIRE(planner.propose(sequence, 8, kCheapRow).empty());
  REQUIRE(planner.propose(sequence, 9, kCheapRow).empty());
}

TEST_CASE("a stop token is never drafted") {
  SchedulerParts parts(draft_options());
  DraftPlanner planner(parts.state);
  GenerateRequest request = predicted({100, 101, 102, 103});
  request.sampling.stop_token_ids = {102};
  Sequence& sequence = start(parts, std::move(request), 100);
  REQUIRE(tokens_of(planner.propose(sequence, 0, kCheapRow)) == std::vector<TokenId>{101});
}

TEST_CASE("drafts that cost more than they gain are left out") {
  SchedulerParts parts(draft_options());
  DraftPlanner planner(parts.state);
  Sequence& sequence = start(parts, predicted({100, 101, 102, 103, 104}), 100);
  // A prediction is believed with 0.8 a token: 0.64 for two, 0.512 for three.
  REQUIRE(planner.propose(sequence, 0, 0.6 / 1.5).size() == 2);
  REQUIRE(planner.propose(sequence, 0, 0.9 / 1.5).empty());
}

TEST_CASE("without a source there is no drafter") {
  SchedulerParts parts(draft_options());
  DraftPlanner planner(parts.state);
  Sequence& sequence = start(parts, predicted({}), 100);
  REQUIRE(planner.propose(sequence, 0, kCheapRow).empty());
  REQUIRE(sequence.drafter == nullptr);
}

TEST_CASE("history is a source if the options say so") {
  auto options = draft_options();
  options.draft_history = true;
  SchedulerParts parts(options);
  DraftPlanner planner(parts.state);
  GenerateRequest request = predicted({});
  request.prompt = {1, 2, 3, 50, 51, 52, 53, 1, 2};
  Sequence& sequence = start(parts, std::move(request), 3);
  const auto drafts = planner.propose(sequence, 0, kCheapRow);
  REQUIRE(tokens_of(drafts) == std::vector<TokenId>{50, 51, 52, 53});
  REQUIRE(drafts[0].source == DraftSource::kHistory);
}

TEST_CASE("the only tokens that a grammar allows are drafted") {
  SchedulerParts parts(draft_options());
  DraftPlanner planner(parts.state);
  GenerateRequest request = predicted({});
  request.grammar = letters("root ::= [abc] \"ab\" [abc] \"c\"");
  Sequence& sequence = start(parts, std::move(request), 12);
  const auto drafts = planner.propose(sequence, 0, kCheapRow);
  REQUIRE(tokens_of(drafts) == std::vector<TokenId>{10, 11});
  REQUIRE(drafts[0].source == DraftSource::kGrammar);
  REQUIRE(drafts[0].allowed->members(9) == std::vector<TokenId>{11});
  REQUIRE(drafts[1].allowed->members(9) == std::vector<TokenId>{10, 11, 12});
}

TEST_CASE("a prediction chooses where a grammar leaves a choice") {
  SchedulerParts parts(draft_options());
  DraftPlanner planner(parts.state);
  GenerateRequest request = predicted({12, 10, 11, 12, 12, 12});
  request.grammar = letters("root ::= [abc] \"a\" [abc] \"b\" [abc]");
  Sequence& sequence = start(parts, std::move(request), 12);
  // The grammar wants b where the prediction says c, and nothing is guessed after that.
  REQUIRE(tokens_of(planner.propose(sequence, 0, kCheapRow)) == std::vector<TokenId>{10, 11, 11});
}
