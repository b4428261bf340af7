#include "sched/scheduler/contention_estimator.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace millrace;
using namespace millrace::sched;

namespace {

ContentionEstimator::Run run_of(uint32_t stage, uint64_t plan, int64_t begin_us, int64_t end_us) {
  return {StageId(stage), plan, BatchShape{.decode_count = 1}, begin_us * 1000, end_us * 1000};
}

using Settled = std::vector<std::pair<uint32_t, long>>;  // stage, nanoseconds

/// Adds the runs in order and returns the isolated ones.
Settled settled(ContentionEstimator& sharing, const std::vector<ContentionEstimator::Run>& runs) {
  Settled all;
  for (const ContentionEstimator::Run& run : runs) {
    for (const ContentionEstimator::IsolatedRun& alone : sharing.add(run)) {
      all.emplace_back(alone.stage.value(), std::lround(alone.run_us * 1e3));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("a run counts by its share of the processors") {
  // One processor, two stages: the second run of stage 0 has it alone except in [100, 160).
  ContentionEstimator sharing(2, 2, {1, 1, {}});
  const auto found = settled(sharing, {run_of(0, 0, 0, 50), run_of(0, 1, 60, 160), run_of(1, 0, 100, 200),
                                       run_of(0, 2, 300, 400), run_of(1, 1, 410, 420), run_of(1, 2, 430, 440)});
  REQUIRE(found == Settled{{0, 50'000}, {1, 70'000}, {0, 70'000}, {1, 10'000}});
}

TEST_CASE("only more runs than processors slow each other down") {
  ContentionEstimator sharing(3, 1, {2, 1, {}});
  REQUIRE(settled(sharing, {run_of(0, 0, 0, 100), run_of(1, 0, 0, 200), run_of(2, 0, 0, 300)}) ==
          Settled{{0, 66'667}, {1, 166'667}, {2, 266'667}});
  // Two threads each: two runs fill three processors more than once.
  ContentionEstimator threads(2, 1, {3, 2, {}});
  REQUIRE(settled(threads, {run_of(0, 0, 0, 100), run_of(1, 0, 50, 150)}) == Settled{{0, 87'500}, {1, 87'500}});
}

TEST_CASE("a run without a shape takes processors too") {
  ContentionEstimator sharing(2, 1, {1, 1, {}});
  ContentionEstimator::Run silent = run_of(1, 0, 0, 100);
  silent.shape.reset();
  REQUIRE(settled(sharing, {run_of(0, 0, 0, 100), silent}) == Settled{{0, 50'000}});
}

TEST_CASE("a run is settled when all its neighbours are known") {
  ContentionEstimator sharing(2, 3, {1, 1, {}});
  size_t count = 0;
  for (uint64_t plan = 0; plan < 1000; ++plan) {
    const auto at = static_cast<int64_t>(100 * plan);
    const auto first = sharing.add(run_of(0, plan, at, at + 100));
    REQUIRE(first.empty());
    count += sharing.add(run_of(1, plan, at + 100, at + 200)).size();
    REQUIRE(count == (plan < 2 ? 0 : 2 * (plan - 1)));
  }
}

TEST_CASE("neighbours slow a run down by both kinds of work") {
  const Contention contention{.prompt_by_prompt = 0.5, .prompt_by_other = 0.25, .other_by_prompt = 1};
  const auto share = [](ContentionEstimator::Run run, double prompt_share) {
    run.prompt_share = prompt_share;
    return run;
  };
  // Two stages, each with a processor: a prompt is stage 0's neighbour in [50, 100), and stage 1's all the time.
  ContentionEstimator prompts(2, 1, {2, 1, contention});
  REQUIRE(settled(prompts, {share(run_of(0, 0, 0, 100), 1), share(run_of(1, 0, 50, 100), 1)}) ==
          Settled{{0, 83'333}, {1, 33'333}});
  ContentionEstimator both(2, 1, {2, 1, contention});
  REQUIRE(settled(both, {share(run_of(0, 0, 0, 100), 1), share(run_of(1, 0, 0, 100), 0)}) ==
          Settled{{0, 80'000}, {1, 50'000}});
  // Four runs on two processors: half a processor each, and one of the three others at the same time.
  ContentionEstimator crowd(4, 1, {2, 1, contention});
  std::vector<ContentionEstimator::Run> runs;
  for (uint32_t stage = 0; stage < 4; ++stage) runs.push_back(share(run_of(stage, 0, 0, 300), 1));
  REQUIRE(settled(crowd, runs) == Settled{{0, 100'000}, {1, 100'000}, {2, 100'000}, {3, 100'000}});
}

TEST_CASE("the lost time is overlap times contention") {
  const Contention contention{.prompt_by_prompt = 0.5, .prompt_by_other = 0.25};
  ContentionEstimator sharing(2, 1, {2, 1, contention});
  ContentionEstimator::Run beside = run_of(1, 0, 20, 60);
  beside.prompt_share = 0.6;
  ContentionEstimator::Run run = run_of(0, 0, 0, 100);
  run.prompt_share = 1;
  (void)sharing.add(run);
  const auto alone = sharing.add(beside);
  REQUIRE(alone.size() == 2);
  const double taken =
      contention.prompt_by_prompt * alone[0].prompt_overlap + contention.prompt_by_other * alone[0].other_overlap;
  REQUIRE(alone[0].processor_us == Approx(100));
  REQUIRE(alone[0].processor_us - alone[0].run_us == Approx(taken * alone[0].processor_us));
  REQUIRE(alone[0].run_us == Approx(60 + 40 / 1.4));
}
