#include <catch2/catch.hpp>
#include <set>

#include "sim/random_rings.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// A random ring whose stages have so many ranks.
sim::SimulatedRingOptions ring_of_ranks(Dice& dice, uint32_t rank_count) {
  auto options = strange_ring(dice);
  options.rank_count = rank_count;
  return options;
}

/// Throws at the run with a drawn number of one stage, whichever of its ranks that is.
struct RankFault {
  StageId stage;
  int runs_left = 0;
  bool dies = false;
  std::optional<async::TimePoint> at;

  void ask(StageId of, async::TimePoint now) {
    if (of != stage || at || now < async::TimePoint(kProfileEnd) || runs_left-- > 0) return;
    at = now;
    if (dies) throw sim::StageDeath("device lost");
    throw std::runtime_error("device lost");
  }
};

/// Returns which rank an error says has failed: the number after "rank".
std::optional<int> named_rank(const Error& error) {
  const size_t found = error.message.find(" rank ");
  if (found == std::string::npos) return std::nullopt;
  return std::stoi(error.message.substr(found + 6));
}

}  // namespace

TEST_CASE("rings of 2 and 4 and 8 ranks give the tokens of the model") {
  for (const uint32_t rank_count : {2U, 4U, 8U}) {
    uint64_t cached_tokens = 0;
    uint64_t host_hits = 0;
    const uint64_t seeds = test::repetitions(60);
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      INFO(rank_count << " ranks, seed " << seed);
      Dice dice(seed);
      const auto options = ring_of_ranks(dice, rank_count);
      auto jobs = random_jobs(dice);
      World world(seed);
      world.start(options, jobs);
      world.run_to_end();
      for (const Job& job : jobs) {
        require_right_end(job, options);
        cached_tokens += job.cached_tokens;
      }
      host_hits += world.head().status().cache.host_hit_pages;
      world.flush_to_nothing();
      world.stop();
    }
    REQUIRE(cached_tokens > 3 * seeds);
    REQUIRE(host_hits > 0);
  }
}

TEST_CASE("a rank that fails breaks the ring at once by its name") {
  std::set<int> named;
  uint64_t failed = 0;
  const uint64_t seeds = test::repetitions(150);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = ring_of_ranks(dice, 1U << dice.range(1, 3));
    auto jobs = random_jobs(dice);
    for (Job& again : asked_again(jobs, " later")) {
      again.request.id += " again";
      again.arrival += 3s;
      again.leave_after.reset();
      jobs.push_back(std::move(again));
    }
    RankFault fault{.stage = StageId(dice.range(0, options.stage_count - 1)),
                    .runs_left = static_cast<int>(dice.range(0, 60)),
                    .dies = dice.chance(0.5),
                    .at = {}};
    World world(seed);
    options.fault = [&](StageId stage) { fault.ask(stage, world.now()); };
    world.start(options, jobs);
    for (async::Duration at = kProfileEnd; !fault.at && at < 8s; at += 1ms) world.run_until(at);
    if (fault.at) {
      world.run_until(fault.at->time_since_epoch() + 2s);
      REQUIRE(world.head().status().ready);  // the ring has formed again
    }
    world.run_to_end();
    for (const Job& job : jobs) {
      require_right_end(job, options, {.breaks = {"device lost"}});
      if (!failed_with(job, "device lost")) continue;
      ++failed;
      const auto rank = named_rank(*job.error);
      REQUIRE(rank.has_value());
      REQUIRE(*rank < static_cast<int>(options.rank_count));
      named.insert(*rank);
    }
    world.flush_to_nothing();
    world.stop();
  }
  REQUIRE(failed > seeds / 4);
  REQUIRE(named.size() == 8);
}

TEST_CASE("every rank reports how long it was busy") {
  sim::SimulatedRingOptions options;
  options.model = kRandomModel;
  options.stage_count = options.head.scheduler.stage_count = options.head.scheduler.window = 2;
  options.rank_count = 4;
  options.costs = {{1000, 0, 0, 0.5}};
  options.head.scheduler.page_count = options.head.scheduler.context_length = 64;
  options.head.scheduler.page_size = 1;
  options.head.scheduler.max_running = 4;
  options.head.scheduler.chunked_prefill_size = 16;
  options.head.max_queued = 64;
  options.head.heartbeat = 100ms;
  options.head.watchdog = 100s;
  std::vector<Job> jobs{job_at(2s, {1, 2, 3})};
  World world(3);
  world.start(options, jobs);
  world.run_to_end();
  const auto& stats = *world.head().ring_stats();
  REQUIRE(stats.rank_count() == 4);
  const auto records = stats.records_after(0);
  REQUIRE(records.size() == 5);
  std::vector<std::vector<int64_t>> busy_ns(2, std::vector<int64_t>(3));
  for (const sched::PlanRecord& record : records) {
    for (size_t s = 0; s < 2; ++s) {
      REQUIRE(record.stages[s].ranks.size() == 3);
      for (size_t i = 0; i < 3; ++i) {
        const sched::RankSpan& rank = record.stages[s].ranks[i];
        REQUIRE(rank.known);
        REQUIRE(rank.end_ns - rank.begin_ns >= 1'000'000);
        busy_ns[s][i] += rank.end_ns - rank.begin_ns;
      }
    }
  }
  const auto totals = stats.snapshot(world.now().time_since_epoch().count()).since_start;
  for (size_t s = 0; s < 2; ++s) REQUIRE(totals.stages[s].rank_busy_ns == busy_ns[s]);
  world.stop();
}
