#include <catch2/catch.hpp>

#include "sim/random_rings.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

std::vector<size_t> tokens_so_far(const std::vector<Job>& jobs) {
  std::vector<size_t> counts;
  for (const Job& job : jobs) counts.push_back(job.tokens.size());
  return counts;
}

}  // namespace

TEST_CASE("pauses of every kind stop all and change no tokens") {
  int64_t stopped = 0;
  const uint64_t seeds = test::repetitions(300);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = strange_ring(dice);
    auto jobs = random_jobs(dice);
    const auto mode = static_cast<sched::PauseMode>(dice.range(0, 2));
    World world(seed);
    world.start(options, jobs);
    world.run_until(kProfileEnd + std::chrono::microseconds(dice.range(2000, 20000)));
    const async::Duration paused = world.now().time_since_epoch();
    world.head().pause(mode);
    world.run_until(paused + 500ms);  // what was in flight has come back
    const std::vector<size_t> before = tokens_so_far(jobs);
    const sched::EngineStatus status = world.head().status();
    stopped += status.running + status.waiting;
    world.run_until(5s);
    REQUIRE(world.head().status().paused);
    REQUIRE(tokens_so_far(jobs) == before);
    REQUIRE(world.head().status().running == status.running);
    for (const Job& job : jobs) {
      const bool is_over = job.endings == 1 || job.left || job.refused;
      REQUIRE((mode != sched::PauseMode::kAbort || job.arrival > paused || is_over));
    }
    if (mode != sched::PauseMode::kInPlace) {
      REQUIRE(status.running == 0);
      REQUIRE(world.head().status().free_pages == world.head().status().total_pages);
    }
    world.head().resume();
    world.run_to_end();
    for (const Job& job : jobs) require_right_end(job, options, {.aborts = mode == sched::PauseMode::kAbort});
    world.stop();
  }
  REQUIRE(stopped > static_cast<int64_t>(seeds));
}
