#include "sched/scheduler/cost_tracker.h"

#include <catch2/catch.hpp>

#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

Plan prompt_plan(uint32_t tokens, uint32_t prefix = 0) {
  Plan plan;
  plan.slices.push_back({.prefix = prefix, .token_count = tokens});
  return plan;
}

StageReport report_of(uint64_t plan, int64_t run_us, uint32_t stage = 0) {
  return {.stage = StageId(stage), .plan = PlanId(plan), .begin_ns = 5000, .end_ns = 5000 + 1000 * run_us};
}

struct Tracked {
  explicit Tracked(const SchedulerOptions& options)
      : chunker({.mode = options.chunking, .size = options.chunked_prefill_size, .page_size = options.page_size}),
        tracker(options, chunker) {}

  /// Reports runs of 100 us and 10 us per token, of growing prompts, until the costs can be used.
  void learn() {
    for (uint32_t tokens = 1; tokens <= 16; ++tokens) {
      tracker.record_plan(prompt_plan(tokens));
      tracker.observe({report_of(plans++, 100 + 10 * tokens)});
    }
    REQUIRE(tracker.costs().usable());
  }

  Chunker chunker;
  CostTracker tracker;
  uint64_t plans = 0;
};

BatchShape prompt_shape(uint32_t tokens) {
  BatchShape shape;
  shape.add_prefill(0, tokens);
  return shape;
}

}  // namespace

TEST_CASE("costs are learnt from the reports of recorded plans") {
  Tracked tracked(small_options());
  tracked.learn();
  REQUIRE(tracked.tracker.costs().slowest_us(prompt_shape(50)) == Approx(600).epsilon(0.02));
}

TEST_CASE("reports of unknown plans and stages are ignored") {
  Tracked tracked(small_options());
  tracked.learn();
  const double before = tracked.tracker.costs().slowest_us(prompt_shape(50));
  tracked.tracker.observe({report_of(tracked.plans, 120), report_of(3, 120, 1)});
  REQUIRE(tracked.tracker.costs().slowest_us(prompt_shape(50)) == before);
  REQUIRE(tracked.tracker.costs().stages().size() == 1);
}

TEST_CASE("a plan that loads pages from the host teaches nothing") {
  Tracked tracked(small_options());
  tracked.learn();
  const double before = tracked.tracker.costs().slowest_us(prompt_shape(50));
  Plan plan = prompt_plan(50);
  plan.copies.push_back({.kind = cache::CopyKind::kLoad});
  tracked.tracker.record_plan(plan);
  tracked.tracker.observe({report_of(tracked.plans, 700)});
  REQUIRE(tracked.tracker.costs().slowest_us(prompt_shape(50)) == before);
}

TEST_CASE("with a new ring plans are numbered anew and costs stay") {
  Tracked tracked(small_options());
  tracked.learn();
  const double before = tracked.tracker.costs().slowest_us(prompt_shape(50));
  tracked.tracker.on_ring_lost();
  tracked.tracker.observe({report_of(3, 140)});
  REQUIRE(tracked.tracker.costs().slowest_us(prompt_shape(50)) == before);
  tracked.tracker.record_plan(prompt_plan(4));
  tracked.tracker.observe({report_of(0, 200)});
  REQUIRE(tracked.tracker.costs().slowest_us(prompt_shape(50)) != before);
}

TEST_CASE("only the last 1024 plans are remembered") {
  Tracked tracked(small_options());
  tracked.learn();
  for (int i = 0; i < 1024; ++i) tracked.tracker.record_plan(prompt_plan(4));
  const double before = tracked.tracker.costs().slowest_us(prompt_shape(50));
  tracked.tracker.observe({report_of(tracked.plans - 1, 300)});
  REQUIRE(tracked.tracker.costs().slowest_us(prompt_shape(50)) == before);
  tracked.tracker.observe({report_of(tracked.plans, 200)});
  REQUIRE(tracked.tracker.costs().slowest_us(prompt_shape(50)) != before);
}

TEST_CASE("the startup profile runs plan by plan and sets the costs") {
  auto options = small_options();
  options.chunking = Chunking::kBalanced;
  Tracked tracked(options);
  uint64_t plan_id = 0;
  while (tracked.tracker.profiling()) {
    const auto plan = tracked.tracker.next_profile_plan(plan_id, 0);
    REQUIRE(plan.has_value());
    tracked.tracker.record_plan(*plan);
    REQUIRE_FALSE(tracked.tracker.next_profile_plan(plan_id + 1, 1).has_value());
    tracked.tracker.observe({report_of(plan_id++, 100 + 10 * static_cast<int64_t>(plan->tokens.size()))});
    tracked.tracker.end_profile_if_finished(1);
    REQUIRE(tracked.tracker.profiling());  // one is in flight
    tracked.tracker.end_profile_if_finished(0);
  }
  REQUIRE(tracked.tracker.costs().usable());
  REQUIRE(tracked.tracker.costs().slowest_us(prompt_shape(16)) == Approx(260).epsilon(0.02));
}

TEST_CASE("an unfinished profile starts over with the next ring") {
  auto options = small_options();
  options.chunking = Chunking::kBalanced;
  Tracked tracked(options);
  const auto first = tracked.tracker.next_profile_plan(0, 0);
  (void)tracked.tracker.next_profile_plan(1, 0);
  tracked.tracker.on_ring_lost();
  const auto again = tracked.tracker.next_profile_plan(0, 0);
  REQUIRE(again->tokens == first->tokens);
  REQUIRE(again->opens.size() == first->opens.size());
}

TEST_CASE("stages share a machine only if there are several") {
  auto options = small_options();
  options.processors = 4;
  options.stage_threads = 2;
  REQUIRE_FALSE(Tracked(options).tracker.machine().has_value());
  REQUIRE(parallel_stages(options) == std::numeric_limits<double>::infinity());
  options.stage_count = 3;
  REQUIRE(Tracked(options).tracker.machine()->processors == 4);
  REQUIRE(parallel_stages(options) == 2);
}

TEST_CASE("runs on one machine are learnt as they are and alone") {
  auto options = small_options();
  options.processors = 1;
  options.stage_count = 2;
  Tracked tracked(options);
  for (uint64_t plan = 0; plan < 40; ++plan) {
    const auto tokens = static_cast<uint32_t>(1 + plan % 13);
    tracked.tracker.record_plan(prompt_plan(tokens));
    const int64_t begin = static_cast<int64_t>(plan) * 10'000'000;
    const int64_t run_ns = 2000 * (100 + 10 * int64_t{tokens});  // both stages share one processor all the time
    for (uint32_t stage = 0; stage < 2; ++stage) {
      tracked.tracker.observe(
          {{.stage = StageId(stage), .plan = PlanId(plan), .begin_ns = begin, .end_ns = begin + run_ns}});
    }
  }
  REQUIRE(tracked.tracker.costs().slowest_us(prompt_shape(10)) == Approx(400).epsilon(0.02));
  REQUIRE(tracked.tracker.isolated_costs().slowest_us(prompt_shape(10)) == Approx(200).epsilon(0.02));
}
