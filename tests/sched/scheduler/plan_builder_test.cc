#include "sched/scheduler/plan_builder.h"

#include "grammar/ebnf.h"
#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

TEST_CASE("chunks continue one another and only the last one samples") {
  SchedulerParts parts(small_options());
  Sequence& sequence = parts.add(1, 10);
  parts.begin_turn();
  REQUIRE(parts.admission.admit(sequence, 1));
  parts.builder.add_slice(sequence, 6);
  const Plan first = parts.builder.take();
  parts.begin_turn();
  parts.builder.add_slice(sequence, 4);
  const Plan second = parts.builder.take();
  REQUIRE(first.slices[0].prefix == 0);
  REQUIRE(first.slices[0].new_page_count == 3);
  REQUIRE_FALSE(first.slices[0].sample);
  REQUIRE(first.tokens == std::vector<TokenId>(6, 1));
  REQUIRE(second.opens.empty());
  REQUIRE(second.slices[0].prefix == 6);
  REQUIRE(second.slices[0].new_page_count == 0);
  REQUIRE(second.slices[0].sample);
  REQUIRE(sequence.in_flight == 2);
  REQUIRE(sequence.last_planned == 2);
  REQUIRE(parts.state.plan_count == 2);
  REQUIRE(parts.state.in_flight.back().sequences == std::vector{SequenceId(1)});
  parts.state.check_invariants();
}

TEST_CASE("the digest of a plan follows from its pages") {
  SchedulerParts parts(small_options());
  Sequence& sequence = parts.add(1, 10);
  const Plan plan = parts.run(sequence);
  uint64_t table = 0;
  for (const PageId page : plan.new_pages) table = table_digest(table, page);
  REQUIRE(plan.digest == plan_digest(0, plan.slices[0], table));
  REQUIRE(sequence.table_digest == table);
}

TEST_CASE("scored rows name their successor") {
  SchedulerParts parts(small_options());
  GenerateRequest request;
  request.prompt = {1, 2, 3, 4};
  request.max_tokens = 0;
  request.prompt_top_logprobs = 2;
  parts.queue.add(SequenceId(1), std::move(request));
  Sequence& sequence = *parts.state.find(SequenceId(1));
  parts.begin_turn();
  REQUIRE(parts.admission.admit(sequence, 1));
  parts.builder.add_slice(sequence, 2);
  parts.builder.add_slice(sequence, 2);
  const std::vector<PlanSlice>& slices = parts.builder.slices();
  REQUIRE(slices[0].prompt_top_logprobs == 2);
  REQUIRE(slices[0].next_token == 3);
  REQUIRE(slices[1].next_token == -1);
  REQUIRE_FALSE(slices[1].sample);  // nothing is to be generated
}

TEST_CASE("the next plan closes slots that became free") {
  SchedulerParts parts(small_options());
  Sequence& sequence = parts.start(1, 4);
  const SlotId slot = sequence.slot;
  parts.state.remove(sequence);
  parts.builder.begin();
  REQUIRE(parts.builder.take().closes == std::vector{slot});
  parts.builder.begin();
  REQUIRE(parts.builder.take().closes.empty());
}

TEST_CASE("drafts are rows of their step and have masks of their own") {
  std::vector<std::string> texts(32);
  texts[10] = "a";
  texts[11] = "b";
  texts[12] = "c";
  grammar::Definition definition;
  definition.root = grammar::parse_ebnf("root ::= \"a\" [bc] \"a\"", definition).value();
  GenerateRequest request;
  request.prompt = {1, 2, 3};
  request.grammar =
      grammar::Grammar::compile(definition, std::make_shared<const grammar::Vocabulary>(texts), {}).value();
  SchedulerParts parts(small_options());
  parts.queue.add(SequenceId(1), std::move(request));
  Sequence& constrained = *parts.state.find(SequenceId(1));
  const Plan prefill = parts.run(constrained);
  REQUIRE(prefill.masks.size() == 1);
  REQUIRE(prefill.masks[0].mask.members(9) == std::vector<TokenId>{10});
  (void)parts.answer(10);
  Sequence& free = parts.start(2, 3);
  parts.begin_turn();
  constrained.drafts.push_back({11, DraftSource::kGrammar, prefill.masks.empty() ? nullptr : constrained.allowed});
  REQUIRE(parts.state.cache.extend(constrained.page_table));
  REQUIRE(parts.state.cache.extend(free.page_table));
  parts.builder.add_slice(constrained, 1);
  parts.builder.add_slice(free, 1);
  REQUIRE(parts.builder.draft_rows() == 1);
  const Plan plan = parts.builder.take();
  REQUIRE(plan.slices[0].draft_count == 1);
  REQUIRE(plan.slices[0].token_count == 2);
  REQUIRE(std::vector(plan.tokens.begin(), plan.tokens.begin() + 2) == std::vector<TokenId>{10, 11});
  REQUIRE(plan.sample_masks.size() == 3);
  REQUIRE(plan.sample_masks[0] >= 0);
  REQUIRE(plan.sample_masks[0] == plan.sample_masks[1]);  // the same mask travels once
  REQUIRE(plan.masks.size() == 1);
  REQUIRE(plan.sample_masks[2] == -1);
}

TEST_CASE("a plan of unconstrained samples names no masks") {
  SchedulerParts parts(small_options());
  REQUIRE(parts.run(parts.add(1, 4)).sample_masks.empty());
}

TEST_CASE("histories bound the opens of one message") {
  auto options = small_options();
  options.page_size = 1024;
  options.page_count = 2048;
  options.context_length = 1 << 21;
  SchedulerParts parts(options);
  const auto add = [&](uint64_t id) -> Sequence& {
    GenerateRequest request;
    request.prompt.assign((1 << 20) + (1 << 19) + 1, 1);
    request.max_tokens = 1;
    request.sampling.repetition_penalty = 1.1F;
    parts.queue.add(SequenceId(id), std::move(request));
    return *parts.state.find(SequenceId(id));
  };
  (void)parts.run(add(1));
  (void)parts.answer();
  Sequence& second = add(2);
  Sequence& third = add(3);
  parts.begin_turn();
  REQUIRE(parts.builder.can_open(second));
  REQUIRE(parts.admission.admit(second, 1));  // six MiB of history
  (void)parts.queue.match(third);
  REQUIRE_FALSE(parts.builder.can_open(third));
  REQUIRE(parts.builder.can_open(parts.add(4, 8)));
}

TEST_CASE("chunks of a prompt are pooled as the request says") {
  const auto kinds = [](Pooling pooling) {
    SchedulerParts parts(small_options());
    parts.queue.add(SequenceId(1), {.prompt = {1, 2, 3, 4, 5, 6}, .max_tokens = 0, .pooling = pooling});
    Sequence& sequence = *parts.state.find(SequenceId(1));
    parts.begin_turn();
    REQUIRE(parts.admission.admit(sequence, 1));
    for (int i = 0; i < 3; ++i) parts.builder.add_slice(sequence, 2);
    std::vector<SlicePooling> found;
    for (const PlanSlice& slice : parts.builder.slices()) {
      REQUIRE_FALSE(slice.sample);
      found.push_back(slice.pooling);
    }
    return found;
  };
  using enum SlicePooling;
  REQUIRE(kinds(Pooling::kFirst) == std::vector{kFirstRow, kNone, kNone});
  REQUIRE(kinds(Pooling::kLast) == std::vector{kNone, kNone, kLastRow});
  REQUIRE(kinds(Pooling::kMean) == std::vector{kSum, kSum, kMean});
}
