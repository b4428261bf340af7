#include "sched/sharing.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace millrace;
using namespace millrace::sched;

namespace {

Sharing::Run run_of(uint32_t stage, uint64_t plan, int64_t begin_us, int64_t end_us) {
  return {StageId(stage), plan, BatchShape{.decode_count = 1}, begin_us * 1000, end_us * 1000};
}

using Settled = std::vector<std::pair<uint32_t, long>>;  // stage, nanoseconds

/// Adds the runs in order and returns what comes out.
Settled settled(Sharing& sharing, const std::vector<Sharing::Run>& runs) {
  Settled all;
  for (const Sharing::Run& run : runs) {
    for (const Sharing::Alone& alone : sharing.add(run)) {
      all.emplace_back(alone.stage.value(), std::lround(alone.run_us * 1e3));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("a run counts for what it had of the processors while others ran beside it") {
  // One processor, two stages: the second run of stage 0 has it for itself but for [100, 160).
  Sharing sharing(2, 2, 1, 1);
  const auto found = settled(sharing, {run_of(0, 0, 0, 50), run_of(0, 1, 60, 160), run_of(1, 0, 100, 200),
                                       run_of(0, 2, 300, 400), run_of(1, 1, 410, 420), run_of(1, 2, 430, 440)});
  REQUIRE(found == Settled{{0, 50'000}, {1, 70'000}, {0, 70'000}, {1, 10'000}});
}

TEST_CASE("as many runs as there are processors do not disturb each other, more do all alike") {
  Sharing sharing(3, 1, 2, 1);
  REQUIRE(settled(sharing, {run_of(0, 0, 0, 100), run_of(1, 0, 0, 200), run_of(2, 0, 0, 300)}) ==
          Settled{{0, 66'667}, {1, 166'667}, {2, 266'667}});
  // Two threads each: two runs fill three processors more than once.
  Sharing threads(2, 1, 3, 2);
  REQUIRE(settled(threads, {run_of(0, 0, 0, 100), run_of(1, 0, 50, 150)}) == Settled{{0, 87'500}, {1, 87'500}});
}

TEST_CASE("a run that says nothing of its cost takes processors all the same") {
  Sharing sharing(2, 1, 1, 1);
  Sharing::Run silent = run_of(1, 0, 0, 100);
  silent.shape.reset();
  REQUIRE(settled(sharing, {run_of(0, 0, 0, 100), silent}) == Settled{{0, 50'000}});
}

TEST_CASE("a run waits for the reports of all plans that were in flight with it") {
  Sharing sharing(2, 3, 1, 1);
  size_t count = 0;
  for (uint64_t plan = 0; plan < 1000; ++plan) {
    const auto at = static_cast<int64_t>(100 * plan);
    const auto first = sharing.add(run_of(0, plan, at, at + 100));
    REQUIRE(first.empty());
    count += sharing.add(run_of(1, plan, at + 100, at + 200)).size();
    REQUIRE(count == (plan < 2 ? 0 : 2 * (plan - 1)));
  }
}
