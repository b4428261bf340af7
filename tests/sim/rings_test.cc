#include <catch2/catch.hpp>

#include "sim/several_rings.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

struct Losses {
  uint64_t moved = 0;
  uint64_t broken = 0;  ///< requests that ran when their ring broke
  uint64_t breaks = 0;
};

/// Runs jobs on two rings of which the first breaks. Nobody is refused, and only what ran there may fail.
History break_one_ring(uint64_t seed, Losses& losses) {
  Dice dice(seed);
  const auto intact = narrow_ring(dice);
  auto breaking = intact;
  auto jobs = spread_jobs(dice, "");
  SeveralRings world(seed, static_cast<sched::LoadBalanceMethod>(dice.range(0, 2)));
  Saboteur saboteur(dice, breaking, [&world] {
    return world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
  });
  world.start({breaking, intact}, jobs);
  world.run_to_end(jobs);
  const Perils perils{.breaks = Saboteur::errors()};
  for (const Job& job : jobs) {
    if (job.refused) REQUIRE(job.error->code == ErrorCode::kInvalidArgument);
    require_right_end(job, intact, perils);
    losses.broken += job.error && job.error->code == ErrorCode::kUnavailable ? 1 : 0;
  }
  REQUIRE(world.router().status().ready);
  REQUIRE(world.router().report(1).moved == 0);
  losses.moved += world.router().report(0).moved;
  for (const uint64_t done : saboteur.done()) losses.breaks += done;
  return world.stop();
}

}  // namespace

TEST_CASE("a ring that breaks fails only what it runs") {
  Losses losses;
  const uint64_t seeds = test::repetitions(150);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    (void)break_one_ring(seed, losses);
  }
  REQUIRE(losses.breaks > seeds / 2);
  REQUIRE(losses.moved > seeds);
  REQUIRE(losses.broken > seeds / 2);
}

TEST_CASE("two rings have one history per seed") {
  Losses losses;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    INFO("seed " << seed);
    const History first = break_one_ring(seed, losses);
    REQUIRE(first == break_one_ring(seed, losses));
  }
}

TEST_CASE("a ring is drained and restarted while the other serves") {
  uint64_t moved = 0;
  const uint64_t seeds = test::repetitions(100);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = narrow_ring(dice);
    auto jobs = spread_jobs(dice, "");
    SeveralRings world(seed, static_cast<sched::LoadBalanceMethod>(dice.range(0, 2)));
    world.start({options, options}, jobs);
    bool done = false;
    const async::Duration at = kProfileEnd + std::chrono::milliseconds(dice.range(5, 400));
    world.spawn(drain_and_restart(world.client_thread(), world.router(), at, done));
    world.run_to_end(jobs);
    REQUIRE(done);
    for (const Job& job : jobs) {
      if (job.refused) REQUIRE(job.error->code == ErrorCode::kInvalidArgument);
      require_right_end(job, options);
    }
    moved += world.router().report(0).moved;
    (void)world.stop();
  }
  REQUIRE(moved > seeds / 4);
}
