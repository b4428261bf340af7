#include <catch2/catch.hpp>
#include <set>

#include "sim/divided_ring.h"
#include "sim/random_rings.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// A random ring whose ranks are on several nodes, with its builder once it is made.
struct DividedRing {
  explicit DividedRing(Dice& dice) : options(strange_ring(dice)) {
    options.rank_count = 1U << dice.range(1, 3);
    const uint32_t per_stage = 1U << dice.range(1, 3);
    node_count = options.stage_count * std::min(per_stage, options.rank_count);
    options.collectives = {.latency = std::chrono::microseconds(dice.range(0, 400)),
                           .bytes_per_second = dice.range(1, 100) * 1e6};
    options.links.latency = std::chrono::microseconds(dice.range(0, 300));
    options.make_builder = [this](sim::RingParts parts) {
      auto made = std::make_unique<DividedRingBuilder>(std::move(parts), node_count, options.collectives);
      builder = made.get();
      return made;
    };
  }
  DividedRing(const DividedRing&) = delete;
  DividedRing& operator=(const DividedRing&) = delete;

  sim::SimulatedRingOptions options;
  uint32_t node_count = 0;
  DividedRingBuilder* builder = nullptr;
};

/// Adds the same requests again, once a ring that has broken is there again.
void ask_again(std::vector<Job>& jobs) {
  for (Job& again : asked_again(jobs, " later")) {
    again.request.id += " again";
    again.arrival += 3s;
    again.leave_after.reset();
    jobs.push_back(std::move(again));
  }
}

}  // namespace

TEST_CASE("stages over several nodes give the tokens of the model") {
  std::set<std::pair<uint32_t, uint32_t>> shapes;
  uint64_t cached_tokens = 0;
  uint64_t host_hits = 0;
  const uint64_t seeds = test::repetitions(150);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    DividedRing ring(dice);
    auto jobs = random_jobs(dice);
    World world(seed);
    world.start(ring.options, jobs);
    world.run_to_end();
    for (const Job& job : jobs) {
      require_right_end(job, ring.options);
      cached_tokens += job.cached_tokens;
    }
    host_hits += world.head().status().cache.host_hit_pages;
    shapes.emplace(ring.options.rank_count, ring.node_count / ring.options.stage_count);
    world.flush_to_nothing();
    world.stop();
  }
  REQUIRE(shapes.size() == 6);  // 2 ranks on 2 nodes, 4 on 2 and 4, 8 on 2, 4 and 8
  REQUIRE(cached_tokens > 3 * seeds);
  REQUIRE(host_hits > 0);
}

TEST_CASE("the loss of a node of a stage ends its ring at once") {
  uint64_t lost = 0;
  std::set<std::string> reasons;
  const uint64_t seeds = test::repetitions(150);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    DividedRing ring(dice);
    auto jobs = random_jobs(dice);
    ask_again(jobs);
    const size_t victim = dice.range(0, ring.node_count - 1);
    const async::Duration death = kProfileEnd + std::chrono::microseconds(dice.range(2000, 300'000));
    World world(seed);
    world.start(ring.options, jobs);
    world.run_until(death);
    ring.builder->kill(victim);
    world.run_until(death + 2s);
    REQUIRE(world.head().status().ready);  // the ring has formed again
    world.run_to_end();
    const std::string reason = "node " + std::to_string(victim) + " has died";
    for (const Job& job : jobs) {
      require_right_end(job, ring.options, {.breaks = {reason}});
      lost += failed_with(job, reason) ? 1 : 0;
    }
    reasons.insert(reason);
    world.flush_to_nothing();
    world.stop();
  }
  REQUIRE(lost > seeds / 4);
  REQUIRE(reasons.size() > 8);
}

TEST_CASE("a rank that fails on another node is named") {
  std::set<std::string> named;
  const uint64_t seeds = test::repetitions(100);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    DividedRing ring(dice);
    auto jobs = random_jobs(dice);
    ask_again(jobs);
    World world(seed);
    const StageId stage(dice.range(0, ring.options.stage_count - 1));
    uint32_t runs_left = dice.range(0, 60);
    bool has_failed = false;
    ring.options.fault = [&](StageId of) {
      if (of != stage || has_failed || world.now() < async::TimePoint(kProfileEnd) || runs_left-- > 0) return;
      has_failed = true;
      throw std::runtime_error("device lost");
    };
    world.start(ring.options, jobs);
    world.run_to_end();
    for (const Job& job : jobs) {
      require_right_end(job, ring.options, {.breaks = {"device lost"}});
      if (!failed_with(job, "device lost")) continue;
      const std::string prefix = "stage " + std::to_string(stage.value()) + " rank ";
      const size_t at = job.error->message.find(prefix);
      REQUIRE(at != std::string::npos);
      named.insert(job.error->message.substr(at + prefix.size(), 1));
    }
    world.flush_to_nothing();
    world.stop();
  }
  REQUIRE(named.size() > 4);
}
