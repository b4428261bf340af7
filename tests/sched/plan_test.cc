#include "sched/plan.h"

#include <catch2/catch.hpp>

#include "base/random.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

Plan sample_plan() {
  Plan plan;
  plan.id = PlanId(41);
  plan.generation = Generation(3);
  plan.closes = {SlotId(7), SlotId(2)};
  SequenceOpen open;
  open.slot = SlotId(2);
  open.prompt_length = 5;
  open.sampling.temperature = 0.25f;
  open.sampling.seed = 0xFEDCBA9876543210u;
  open.sampling.logit_bias = {{11, -3.5f}, {12, 100.0f}};
  open.sampling.stop_token_ids = {1, 2, 3};
  open.sampling.top_logprobs = 4;
  plan.opens = {open};
  plan.slices = {{SlotId(2), 0, 5, 2, true, 1, -1}, {SlotId(4), 130, 1, 0, true, -1, -1}};
  plan.tokens = {10, 20, 30, 40, 50, 60};
  plan.new_pages = {PageId(9), PageId(8)};
  plan.reports = {{StageId(1), PlanId(40), 1000, 1100, 1200, 1193, 77}};
  return plan;
}

PlanOutput sample_output() {
  PlanOutput output;
  output.id = PlanId(41);
  output.generation = Generation(3);
  SliceOutput sampled;
  sampled.sample.emplace();
  sampled.sample->token = 99;
  sampled.sample->logprobs = {99, -0.5f, 2, {{98, -0.25f}, {99, -0.5f}}};
  SliceOutput scored;
  scored.scores = {{5, -1.0f, 3, {}}, {6, -2.0f, 1, {{6, -2.0f}}}};
  SliceOutput faulty;
  faulty.fault = tensor::LogitFault::kNothing;
  output.slices = {sampled, scored, SliceOutput{}, faulty};
  output.reports = {{StageId(0), PlanId(41), 1, 2, 3, 4, 5}};
  return output;
}

}  // namespace

TEST_CASE("a plan survives its wire form") {
  const Plan plan = sample_plan();
  const auto bytes = plan.encode();
  const auto read = Plan::decode(bytes);
  REQUIRE(read.has_value());
  REQUIRE(read->encode() == bytes);
  REQUIRE(read->id == plan.id);
  REQUIRE(read->closes == plan.closes);
  REQUIRE(read->opens[0].sampling.seed == plan.opens[0].sampling.seed);
  REQUIRE(read->opens[0].sampling.logit_bias == plan.opens[0].sampling.logit_bias);
  REQUIRE(read->slices[1].prefix == 130);
  REQUIRE(read->slices[0].score_top == 1);
  REQUIRE(read->tokens == plan.tokens);
  REQUIRE(read->new_pages == plan.new_pages);
  REQUIRE(read->reports[0].run_ns() == -7);
  REQUIRE(read->reports[0].sent_bytes == 77);
}

TEST_CASE("an output survives its wire form") {
  const auto bytes = sample_output().encode();
  const auto read = PlanOutput::decode(bytes);
  REQUIRE(read.has_value());
  REQUIRE(read->encode() == bytes);
  REQUIRE(read->slices[0].sample->token == 99);
  REQUIRE(read->slices[0].sample->logprobs.top == sample_output().slices[0].sample->logprobs.top);
  REQUIRE(read->slices[1].scores[1].rank == 1);
  REQUIRE_FALSE(read->slices[2].sample.has_value());
  REQUIRE(read->slices[2].fault == tensor::LogitFault::kNone);
  REQUIRE(read->slices[3].fault == tensor::LogitFault::kNothing);
  PlanOutput unknown = sample_output();
  unknown.slices[0].fault = static_cast<tensor::LogitFault>(4);
  REQUIRE(PlanOutput::decode(unknown.encode()).error().message == "output: a fault of unknown kind 4");
}

TEST_CASE("every truncation of a message is refused") {
  const auto plan = sample_plan().encode();
  for (size_t length = 0; length < plan.size(); ++length) {
    REQUIRE(Plan::decode(std::span(plan).first(length)).has_error());
  }
  const auto output = sample_output().encode();
  for (size_t length = 0; length < output.size(); ++length) {
    REQUIRE(PlanOutput::decode(std::span(output).first(length)).has_error());
  }
  auto longer = plan;
  longer.push_back(std::byte{0});
  REQUIRE(Plan::decode(longer).has_error());
}

TEST_CASE("corrupted messages are refused or consistent, never a crash") {
  const auto original = sample_plan().encode();
  size_t refused = 0;
  constexpr int kTries = 20000;
  for (int i = 0; i < kTries; ++i) {
    auto bytes = original;
    for (uint64_t flip = 0; flip < 3; ++flip) {
      const auto at =
          static_cast<size_t>(uniform_at(static_cast<uint64_t>(i), flip) * static_cast<double>(bytes.size()));
      bytes[at] = static_cast<std::byte>(uniform_at(static_cast<uint64_t>(i), 10 + flip) * 256);
    }
    const auto plan = Plan::decode(bytes);
    refused += plan.has_error();
    if (plan.has_error()) continue;
    size_t tokens = 0;
    for (const PlanSlice& slice : plan->slices) tokens += slice.token_count;
    REQUIRE(tokens == plan->tokens.size());
  }
  REQUIRE(refused > kTries / 10);
}

TEST_CASE("a plan whose parts disagree is refused with both numbers") {
  Plan plan = sample_plan();
  plan.tokens.pop_back();
  REQUIRE(Plan::decode(plan.encode()).error().message == "plan: 5 tokens, its slices want 6");
  plan = sample_plan();
  plan.new_pages.push_back(PageId(1));
  REQUIRE(Plan::decode(plan.encode()).error().message == "plan: 3 new pages, its slices want 2");
}
