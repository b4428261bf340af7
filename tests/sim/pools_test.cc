#include <catch2/catch.hpp>

#include "sim/random_rings.h"
#include "support/captured_log.h"
#include "support/effort.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

/// Draws pools that hold the whole context, smaller or larger than those before.
cache::PoolSizes random_pools(Dice& dice, const sched::SchedulerOptions& scheduler) {
  const uint32_t least = (scheduler.context_length + scheduler.page_size - 1) / scheduler.page_size;
  cache::PoolSizes pages{.device = dice.range(least, least + scheduler.page_count)};
  if (scheduler.host_page_count > 0) pages.host = dice.range(1, 2 * scheduler.host_page_count);
  if (dice.chance(0.3)) pages.sequences = dice.range(1, 10);
  return pages;
}

/// A ring that breaks early, some times, and each time comes back with other pools; half of its builds fail at first.
struct ChangingPools {
  sched::SchedulerOptions scheduler;
  Dice dice;
  std::vector<cache::PoolSizes> drawn;
  int failures = 0;

  cache::PoolSizes next(RingEpoch epoch) {
    if (epoch > RingEpoch(1) && dice.chance(0.3)) {
      ++failures;
      throw ErrorException(Error{ErrorCode::kExhausted, "no room for a page"});
    }
    if (epoch > RingEpoch(1) && dice.chance(0.7)) drawn.push_back(random_pools(dice, scheduler));
    return drawn.back();
  }
};

}  // namespace

TEST_CASE("the queue survives pools that change with each epoch") {
  uint64_t shrunk = 0;
  uint64_t grown = 0;
  uint64_t failures = 0;
  uint64_t whole = 0;
  const uint64_t seeds = test::repetitions(400);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = strange_ring(dice);
    auto jobs = random_jobs(dice);
    for (Job& again : asked_again(jobs, " later")) {
      again.request.id += " again";
      again.arrival += std::chrono::milliseconds(dice.range(300, 2000));
      again.leave_after.reset();
      jobs.push_back(std::move(again));
    }
    const StageId victim(dice.range(0, options.stage_count - 1));
    int runs_left = static_cast<int>(dice.range(0, 20));
    const int runs_between = static_cast<int>(dice.range(1, 30));
    ChangingPools pools{options.head.scheduler, Dice(seed + 3'000'000), {}, 0};
    pools.drawn.push_back(
        {.device = options.head.scheduler.page_count, .host = options.head.scheduler.host_page_count});
    options.pool_sizes = [&pools](RingEpoch epoch) { return pools.next(epoch); };
    World world(seed);
    options.fault = [&](StageId stage) {
      const bool early = world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
      if (!early || stage != victim || runs_left-- > 0) return;
      runs_left = runs_between;
      throw std::runtime_error("device lost");
    };
    world.start(options, jobs);
    world.run_to_end();
    for (const Job& job : jobs) {
      require_right_end(job, options, {.breaks = {"device lost"}});
      whole += job.endings == 1 && !job.error ? 1 : 0;
    }
    const sched::EngineStatus status = world.head().status();
    REQUIRE(status.ready);
    REQUIRE(status.total_pages == pools.drawn.back().device);
    REQUIRE(status.host_pages == pools.drawn.back().host);
    REQUIRE(world.head().model_info().context_length == options.head.scheduler.context_length);
    for (size_t i = 1; i < pools.drawn.size(); ++i) {
      shrunk += pools.drawn[i].device < pools.drawn[i - 1].device ? 1 : 0;
      grown += pools.drawn[i].device > pools.drawn[i - 1].device ? 1 : 0;
    }
    failures += static_cast<uint64_t>(pools.failures);
    world.flush_to_nothing();
    world.stop();
  }
  REQUIRE(shrunk > seeds / 4);
  REQUIRE(grown > seeds / 4);
  REQUIRE(failures > seeds / 4);
  REQUIRE(whole > 2 * seeds);
}

namespace {

/// One stage whose pool is the whole context, for one request at a time.
sim::SimulatedRingOptions one_stage_ring() {
  sim::SimulatedRingOptions options;
  options.model = kRandomModel;
  options.costs = {{1000, 0, 0, 0}};
  sched::SchedulerOptions& scheduler = options.head.scheduler;
  scheduler.page_size = 1;
  scheduler.page_count = scheduler.context_length = 64;
  scheduler.max_running = 1;
  scheduler.chunked_prefill_size = 64;
  scheduler.host_page_count = 32;
  options.head.audit = true;
  options.head.max_queued = 64;
  options.head.heartbeat = 1s;
  options.head.watchdog = 100s;
  return options;
}

Job prompt_of(std::string id, async::Duration arrival, size_t tokens) {
  Job job = job_at(arrival, std::vector<TokenId>(tokens, 3));
  job.request.id = std::move(id);
  return job;
}

}  // namespace

TEST_CASE("what the smaller pool does not hold ends with its limit") {
  const CapturedLog log;
  auto options = one_stage_ring();
  std::vector<async::TimePoint> breaks{async::TimePoint(2s + 2ms), async::TimePoint(6s)};
  const std::vector<uint32_t> pages{64, 32, 64};
  options.pool_sizes = [&pages](RingEpoch epoch) {
    return cache::PoolSizes{.device = pages.at(epoch.value() - 1), .host = 32};
  };
  std::vector<Job> jobs{prompt_of("runs", 2s, 5),        prompt_of("too long", 2s + 1ms, 32),
                        prompt_of("fits", 2s + 1ms, 31), prompt_of("late and too long", 4s, 32),
                        prompt_of("runs too", 6s, 5),    prompt_of("long again", 8s, 59)};
  jobs[1].request.sampling.seed = 9;
  World world(1);
  options.fault = [&](StageId) {
    if (breaks.empty() || world.now() < breaks.front()) return;
    breaks.erase(breaks.begin());
    throw std::runtime_error("device lost");
  };
  world.start(options, jobs);
  world.run_until(3s);
  REQUIRE(world.head().model_info().context_length == 32);
  REQUIRE(world.head().model_info().kv_token_capacity == 32);
  REQUIRE(world.head().status().total_pages == 32);
  REQUIRE(world.head().ring_stats()->costs().page_count == 32);
  REQUIRE(world.head().ring_stats()->costs().context_length == 32);
  world.run_to_end();
  REQUIRE(failed_with(jobs[0], "device lost"));
  REQUIRE(jobs[1].endings == 1);
  REQUIRE(jobs[1].error->code == ErrorCode::kUnavailable);
  REQUIRE_THAT(jobs[1].error->message, Mentions("32", "64"));
  // The context ends its output after the one token for which there is room.
  REQUIRE(jobs[2].finish == sched::FinishReason::kLength);
  REQUIRE(jobs[2].tokens.size() == 1);
  REQUIRE(jobs[2].tokens.front() == expected_tokens(jobs[2], options).front());
  REQUIRE(jobs[3].refused);
  REQUIRE(jobs[3].error->code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(jobs[3].error->message, Mentions("32", "32", "31"));
  REQUIRE(failed_with(jobs[4], "device lost"));
  REQUIRE(jobs[5].tokens == expected_tokens(jobs[5], options));
  REQUIRE(world.head().model_info().context_length == 64);
  REQUIRE(log.count("KV cache: 32 pages of 1 tokens from now on, 64 before") == 1);
  REQUIRE(log.count("KV cache: 64 pages of 1 tokens from now on, 32 before") == 1);
  world.stop();
}
