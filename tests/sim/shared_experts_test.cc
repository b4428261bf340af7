#include <catch2/catch.hpp>

#include "sim/several_rings.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

/// Rings that share experts: how many, and how they step.
struct SharedRings {
  uint32_t rings = 2;
  uint64_t lookahead = 24;
  std::optional<sim::SimulatedLinkOptions> connections;  // between their processes, if there are several
  sim::SimulatedRingOptions options;
};

SharedRings random_sharing(Dice& dice) {
  SharedRings sharing{.rings = 1U << dice.range(1, 2),
                      .lookahead = dice.chance(0.5) ? 24 : dice.range(1, 23),
                      .connections = {},
                      .options = {}};
  if (dice.chance(0.5)) {
    sharing.connections = sim::SimulatedLinkOptions{.latency = std::chrono::microseconds(dice.range(0, 500))};
  }
  sharing.options = narrow_ring(dice);
  sharing.options.rank_count = 1U << dice.range(0, sharing.rings == 2 ? 2 : 1);
  sharing.options.collectives.latency = std::chrono::microseconds(dice.range(0, 20));
  return sharing;
}

/// Starts the rings; `first` is the ring that something happens to.
void start(SeveralRings& world, const SharedRings& sharing, const sim::SimulatedRingOptions& first,
           std::vector<Job>& jobs) {
  world.share_experts(sharing.rings, first.rank_count, sharing.lookahead, first.collectives);
  if (sharing.connections) world.divide(*sharing.connections);
  std::vector<sim::SimulatedRingOptions> rings(sharing.rings, sharing.options);
  rings.front() = first;
  world.start(std::move(rings), jobs);
}

/// No ring is past the last work of any by more than the look-ahead.
void require_within_lookahead(SeveralRings& world, uint64_t lookahead) {
  uint64_t last_work = 0;
  for (size_t ring = 0; ring < world.size(); ++ring) {
    last_work = std::max(last_work, world.steps(ring).newest_with_rows);
  }
  for (size_t ring = 0; ring < world.size(); ++ring) REQUIRE(world.steps(ring).newest <= last_work + lookahead);
}

/// Rings that are idle have all come to the same step: none waits for another.
void require_same_step(SeveralRings& world) {
  for (size_t ring = 0; ring < world.size(); ++ring) {
    REQUIRE(world.steps(ring).newest == world.steps(0).newest);
    REQUIRE(world.steps(ring).in_flight == 0);
  }
}

struct Happened {
  uint64_t steps_without_rows = 0;
  uint64_t broken = 0;
  uint64_t breaks = 0;
  uint64_t named = 0;  ///< requests of other rings that ended with the name of the ring that broke
};

History run_in_peace(uint64_t seed, Happened& happened) {
  Dice dice(seed);
  const SharedRings sharing = random_sharing(dice);
  auto jobs = spread_jobs(dice, "", 1);
  SeveralRings world(seed, static_cast<sched::LoadBalanceMethod>(dice.range(0, 2)));
  start(world, sharing, sharing.options, jobs);
  for (async::Duration at = kProfileEnd; at < 3s; at += 10ms) {
    world.run_until(at);
    require_within_lookahead(world, sharing.lookahead);
  }
  world.run_to_end(jobs);
  require_within_lookahead(world, sharing.lookahead);
  require_same_step(world);
  for (const Job& job : jobs) require_right_end(job, sharing.options);
  for (size_t ring = 0; ring < world.size(); ++ring) happened.steps_without_rows += world.steps(ring).without_rows;
  return world.stop();
}

void break_one_ring(uint64_t seed, Happened& happened) {
  Dice dice(seed);
  const SharedRings sharing = random_sharing(dice);
  auto breaking = sharing.options;
  auto jobs = spread_jobs(dice, "", 1);
  SeveralRings world(seed, static_cast<sched::LoadBalanceMethod>(dice.range(0, 2)));
  Saboteur saboteur(dice, breaking, [&world] {
    return world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
  });
  auto intact = sharing;
  intact.options.head.watchdog = breaking.head.watchdog;
  start(world, intact, breaking, jobs);
  world.run_to_end(jobs);
  require_same_step(world);
  const Perils perils{.breaks = Saboteur::errors()};
  for (const Job& job : jobs) {
    require_right_end(job, sharing.options, perils);
    happened.broken += !job.refused && job.error && job.error->code == ErrorCode::kUnavailable ? 1 : 0;
    happened.named += failed_with(job, "ring 0: ") ? 1 : 0;
  }
  for (size_t ring = 0; ring < world.size(); ++ring) REQUIRE(world.router().report(ring).fault.empty());
  for (const uint64_t done : saboteur.done()) happened.breaks += done;
  (void)world.stop();
}

}  // namespace

TEST_CASE("rings that share experts give the tokens of the model") {
  Happened happened;
  const uint64_t seeds = test::repetitions(40);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    (void)run_in_peace(seed, happened);
  }
  REQUIRE(happened.steps_without_rows > seeds);
}

TEST_CASE("rings that share experts have one history per seed") {
  Happened happened;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    INFO("seed " << seed);
    const History first = run_in_peace(seed, happened);
    REQUIRE(first == run_in_peace(seed, happened));
  }
}

TEST_CASE("a ring that breaks ends those that share its experts") {
  Happened happened;
  const uint64_t seeds = test::repetitions(60);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    break_one_ring(seed, happened);
  }
  REQUIRE(happened.breaks > seeds / 2);
  REQUIRE(happened.broken > seeds / 2);
  REQUIRE(happened.named > 0);
}

TEST_CASE("an idle ring that dies ends the ring that works") {
  for (uint64_t seed = 0; seed < test::repetitions(50); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    SharedRings sharing = random_sharing(dice);
    std::optional<async::TimePoint> died;
    auto dying = sharing.options;
    Job job = job_at(kProfileEnd + 100ms, {1, 2, 3});
    job.request.ring = 1;
    job.request.max_tokens = 40;
    std::vector<Job> jobs{job};
    SeveralRings world(seed, sched::LoadBalanceMethod::kRoundRobin);
    int runs_left = static_cast<int>(dice.range(0, 10));
    dying.fault = [&](StageId) {
      if (died || world.now() < async::TimePoint(jobs[0].arrival) || runs_left-- > 0) return;
      died = world.now();
      throw std::runtime_error("device lost");
    };
    start(world, sharing, dying, jobs);
    for (async::Duration at = kProfileEnd; jobs[0].endings == 0 && at < 10s; at += 1ms) world.run_until(at);
    REQUIRE(died.has_value());
    REQUIRE(world.now() < *died + 100ms);
    REQUIRE(failed_with(jobs[0], "ring 0: "));
    REQUIRE(failed_with(jobs[0], "device lost"));
    world.run_until(world.now().time_since_epoch() + 3s);
    for (size_t ring = 0; ring < world.size(); ++ring) REQUIRE(world.router().report(ring).fault.empty());
    world.run_to_end(jobs);
    (void)world.stop();
  }
}

TEST_CASE("rings that share experts come back after a restart") {
  const uint64_t seeds = test::repetitions(20);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const SharedRings sharing = random_sharing(dice);
    auto jobs = spread_jobs(dice, "", 1);
    SeveralRings world(seed, static_cast<sched::LoadBalanceMethod>(dice.range(0, 2)));
    start(world, sharing, sharing.options, jobs);
    bool done = false;
    const async::Duration at = kProfileEnd + std::chrono::milliseconds(dice.range(5, 400));
    world.spawn(drain_and_restart(world.client_thread(), world.router(), at, done));
    world.run_to_end(jobs);
    REQUIRE(done);
    require_same_step(world);
    for (const Job& job : jobs) require_right_end(job, sharing.options, {.breaks = {"administrator"}});
    (void)world.stop();
  }
}

TEST_CASE("a lost connection ends rings that share experts") {
  Happened happened;
  const uint64_t seeds = test::repetitions(40);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    SharedRings sharing = random_sharing(dice);
    if (!sharing.connections) sharing.connections.emplace();
    auto jobs = spread_jobs(dice, "", 1);
    SeveralRings world(seed, static_cast<sched::LoadBalanceMethod>(dice.range(0, 2)));
    start(world, sharing, sharing.options, jobs);
    for (uint32_t cuts = dice.range(1, 3); cuts > 0; --cuts) {
      world.run_until(std::max<async::Duration>(world.now().time_since_epoch(), kProfileEnd) +
                      std::chrono::microseconds(dice.range(0, 200'000)));
      world.cut_connection(dice.range(1, sharing.rings - 1), "cable cut");
    }
    world.run_to_end(jobs);
    require_same_step(world);
    for (const Job& job : jobs) {
      require_right_end(job, sharing.options, {.breaks = {"cable cut"}});
      happened.broken += failed_with(job, "cable cut") ? 1 : 0;
      happened.named += failed_with(job, "ring ") ? 1 : 0;
    }
    for (size_t ring = 0; ring < world.size(); ++ring) REQUIRE(world.router().report(ring).fault.empty());
    (void)world.stop();
  }
  REQUIRE(happened.broken > seeds / 2);
  REQUIRE(happened.named > 0);
}
