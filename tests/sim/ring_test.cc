#include <catch2/catch.hpp>
#include <set>

#include "sim/siege.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

struct Outcome {
  uint64_t preemptions = 0;
  uint64_t hits = 0;
  uint64_t host_hits = 0;
  uint64_t fetched = 0;
  uint64_t flushed = 0;
  uint64_t plans = 0;
  sched::DraftCounts drafts;
  History history;
};

Outcome run_world(uint64_t seed, const sim::SimulatedRingOptions& options, std::vector<Job>& jobs) {
  World world(seed);
  world.start(options, jobs);
  uint64_t flushed = 0;
  world.spawn(flush_now_and_then(world.client_thread(), world.head(), Dice(seed + 2'000'000), flushed));
  world.run_to_end();
  world.flush_to_nothing();
  const sched::EngineStatus status = world.head().status();
  const uint64_t plans = world.head().ring_stats()->snapshot(0).since_start.plans;
  world.stop();
  return {status.preemptions,
          status.cache.device_hit_pages + status.cache.host_hit_pages,
          status.cache.host_hit_pages,
          status.cache.fetched_pages,
          flushed,
          plans,
          status.drafts,
          world.history()};
}

}  // namespace

TEST_CASE("Rings whose token masks are slow give the same tokens") {
  size_t constrained = 0;
  for (uint64_t seed = 0; seed < test::repetitions(200); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    options.head.scheduler.mask_steps = dice.chance(0.5) ? 1 : dice.range(2, 40);
    auto jobs = random_jobs(dice);
    (void)run_world(seed, options, jobs);
    for (const Job& job : jobs) {
      require_right_end(job, options);
      constrained += job.request.grammar != nullptr && job.finish ? 1 : 0;
    }
  }
  REQUIRE(constrained > test::repetitions(200) / 4);
}

TEST_CASE("random rings give every request its own tokens once") {
  uint64_t preemptions = 0;
  uint64_t cached_tokens = 0;
  uint64_t host_hits = 0;
  uint64_t fetched = 0;
  uint64_t flushed = 0;
  uint64_t plans = 0;
  uint64_t refused = 0;
  uint64_t faults = 0;
  sched::DraftCounts drafts;
  const uint64_t seeds = test::repetitions(1500);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = strange_ring(dice);
    auto jobs = random_jobs(dice);
    if (options.make_store) {  // the server of before, from which the store has what it has
      auto same = asked_again(jobs, " before");
      (void)run_world(seed + 1'000'000, options, same);
    }
    const Outcome outcome = run_world(seed, options, jobs);
    preemptions += outcome.preemptions;
    host_hits += outcome.host_hits;
    fetched += outcome.fetched;
    flushed += outcome.flushed;
    plans += outcome.plans;
    for (size_t source = 0; source < sched::kDraftSources; ++source) {
      drafts.drafted[source] += outcome.drafts.drafted[source];
      drafts.accepted[source] += outcome.drafts.accepted[source];
    }
    uint64_t cached_here = 0;
    for (const Job& job : jobs) {
      cached_here += job.cached_tokens;
      require_right_end(job, options);
      refused += job.refused || exceeded_queue(job) ? 1 : 0;
      faults += job.endings == 1 && job.error ? 1 : 0;
    }
    cached_tokens += cached_here;
    const bool all_told = std::ranges::none_of(
        jobs, [](const Job& job) { return job.left || (job.error && !job.refused && !exceeded_queue(job)); });
    if (outcome.preemptions == 0 && all_told) {
      REQUIRE(cached_here == outcome.hits * options.head.scheduler.page_size);
    }
  }
  REQUIRE(cached_tokens > 6 * seeds);
  REQUIRE(host_hits > seeds / 4);
  REQUIRE(fetched > seeds / 4);
  REQUIRE(flushed > seeds / 2);
  REQUIRE(plans > 65 * seeds);
  for (size_t source = 0; source < sched::kDraftSources; ++source) {
    INFO(sched::kDraftSourceNames[source]);
    REQUIRE(drafts.accepted[source] > seeds / 20);
    REQUIRE(drafts.drafted[source] - drafts.accepted[source] > seeds / 20);
  }
  REQUIRE(refused > seeds / 10);
  REQUIRE(faults > seeds / 20);
  REQUIRE(preemptions > seeds / 15);  // else the pools were too large to test anything
}

TEST_CASE("a ring without an output head pools every prompt once") {
  uint64_t pooled = 0;
  uint64_t cached_tokens = 0;
  const uint64_t seeds = test::repetitions(300);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = strange_ring(dice);
    options.head.scheduler.has_output_head = false;
    options.head.scheduler.hidden_size = sim::SimulatedModel::kPooledSize;
    auto jobs = random_jobs(dice);
    for (Job& job : jobs) make_pooled(dice, job);
    (void)run_world(seed, options, jobs);
    for (const Job& job : jobs) {
      require_right_end(job, options);
      pooled += job.pooled.empty() ? 0 : 1;
      cached_tokens += job.cached_tokens;
    }
  }
  REQUIRE(pooled > 4 * seeds);
  REQUIRE(cached_tokens > seeds);
}

TEST_CASE("a ring without an output head refuses to generate") {
  Dice dice(1);
  auto options = random_ring(dice);
  options.head.scheduler.has_output_head = false;
  std::vector<Job> jobs{job_at(kProfileEnd, {1, 2, 3})};
  (void)run_world(1, options, jobs);
  REQUIRE(jobs[0].refused);
  REQUIRE(jobs[0].error->code == ErrorCode::kInvalidArgument);
}

namespace {

asio::awaitable<void> flush_at(async::Runtime& runtime, sched::Engine& engine, async::Duration at,
                               std::optional<Result<void>>& answer) {
  co_await async::sleep_for(runtime, at);
  answer = co_await engine.flush_cache(runtime, 0s);
}

}  // namespace

TEST_CASE("flushed pages come back from the store but not while in use") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    sched::SchedulerOptions& scheduler = options.head.scheduler;
    scheduler.share_prefixes = true;
    scheduler.host_page_count = 4 * scheduler.page_count;
    scheduler.write_policy = cache::WritePolicy::kWriteThrough;
    scheduler.expected_tokens = 1;  // no group waits for its few host pages to be persisted
    scheduler.window_sequences = 0;
    add_store(dice, options, 0.0);
    scheduler.prefetch_policy = sched::PrefetchPolicy::kWaitComplete;
    std::vector<Job> jobs(2);
    for (size_t i = 0; i < 2; ++i) {
      jobs[i].request.id = std::to_string(i);
      jobs[i].request.prompt.assign(40, 1);
      jobs[i].request.max_tokens = 5;
      jobs[i].arrival = i == 0 ? async::Duration(2s) : async::Duration(10s);
    }
    async::VirtualWorld world(seed);
    sim::SimulatedRing ring(world, options);
    async::Runtime& client_thread = world.add_thread();
    async::TaskGroup clients(client_thread);
    for (Job& job : jobs) clients.spawn("client", act_as_client(client_thread, ring.head(), job));
    std::optional<Result<void>> refused;
    std::optional<Result<void>> flushed;
    clients.spawn("early flush", flush_at(client_thread, ring.head(), 2s + 10us, refused));
    clients.spawn("late flush", flush_at(client_thread, ring.head(), 9s, flushed));
    world.run(async::TimePoint(20s));
    REQUIRE(clients.size() == 0);
    REQUIRE(refused->has_error());
    REQUIRE(refused->error().code == ErrorCode::kConflict);
    REQUIRE_FALSE(flushed->has_error());
    REQUIRE(jobs[0].cached_tokens == 0);
    REQUIRE(jobs[1].cached_tokens == 39 / scheduler.page_size * scheduler.page_size);
    REQUIRE(ring.head().status().cache.fetched_pages == 39 / scheduler.page_size);
    for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
    ring.stop();
    world.run();
  }
}

TEST_CASE("selective write-through stores a prefix on its second use") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = roomy_ring(dice);
    options.head.scheduler.write_policy = cache::WritePolicy::kWriteThroughSelective;
    const std::vector<TokenId> prompt(40, 1);
    std::vector<Job> jobs{job_at(2s, prompt), job_at(4s, {7, 8, 9}), job_at(6s, prompt)};
    World world(seed);
    world.start(options, jobs);
    world.run_until(5s);
    REQUIRE(jobs[1].endings == 1);
    REQUIRE(world.head().status().cached_host_pages == 0);
    world.run_to_end();
    REQUIRE(world.head().status().cached_host_pages == 39 / options.head.scheduler.page_size);
    world.stop();
  }
}

TEST_CASE("a waiting request finds its prefix in the store after breaks") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = roomy_ring(dice);
    add_store(dice, options, 0.0);
    options.head.scheduler.max_running = 1;
    options.head.scheduler.policy = sched::QueuePolicy::kFcfs;
    options.head.scheduler.prefetch_policy = sched::PrefetchPolicy::kWaitComplete;
    const std::vector<TokenId> prompt(40, 1);
    // The second has nothing to be fetched, so that the third does not overtake it.
    std::vector<Job> jobs{job_at(2s, prompt), job_at(4s, {7}), job_at(4s + 10us, prompt)};
    jobs[1].request.max_tokens = 50;
    int runs_left = 20;
    World world(seed);
    options.fault = [&](StageId stage) {
      const bool last = stage.value() + 1 == options.stage_count;
      if (last && world.now() > async::TimePoint(4s) && runs_left-- == 0) throw sim::StageDeath("power cut");
    };
    world.start(options, jobs);
    world.run_to_end();
    REQUIRE(jobs[1].error.has_value());
    REQUIRE(jobs[2].tokens == expected_tokens(jobs[2], options));
    const uint32_t page_size = options.head.scheduler.page_size;
    REQUIRE(jobs[2].cached_tokens == 39 / page_size * page_size);
    REQUIRE(world.head().status().cache.fetched_pages == 39 / page_size);
    world.stop();
  }
}

namespace {

/// Its ring stops at any moment.
History stopped_world(uint64_t seed) {
  Dice dice(seed);
  const auto options = strange_ring(dice);
  auto jobs = random_jobs(dice);
  World world(seed);
  world.start(options, jobs);
  world.run_until(kProfileEnd + std::chrono::microseconds(dice.range(0, 100'000)));
  world.stop();
  return world.history();
}

/// Its clients and requests are those of `seed`; only the order of what happens at once is drawn from `order`.
History world_of(uint64_t seed, uint64_t order) {
  Dice dice(seed);
  const auto options = strange_ring(dice);
  auto jobs = random_jobs(dice);
  return run_world(order, options, jobs).history;
}

}  // namespace

TEST_CASE("one seed gives one history in worlds full of faults") {
  Casualties casualties;
  std::array<uint64_t, Saboteur::kWayCount> breaks{};
  for (uint64_t seed = 0; seed < test::repetitions(20); ++seed) {
    INFO("seed " << seed);
    const History first = world_of(seed, seed);
    REQUIRE(first == world_of(seed, seed));
    REQUIRE(first.trace_hash != world_of(seed, seed + 1000).trace_hash);
    REQUIRE(stopped_world(seed) == stopped_world(seed));
    const History besieged = besiege_cramped(seed, casualties);
    REQUIRE(besieged == besiege_cramped(seed, casualties));
    const History broken = besiege_breaking(seed, casualties, breaks);
    REQUIRE(broken == besiege_breaking(seed, casualties, breaks));
  }
}

TEST_CASE("a failing stage ends every request with one clear error") {
  uint64_t failed = 0;
  const uint64_t seeds = test::repetitions(300);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = strange_ring(dice);
    auto jobs = random_jobs(dice);
    const StageId victim(dice.range(0, options.stage_count - 1));
    int runs_left = static_cast<int>(dice.range(0, 20));
    World world(seed);
    options.fault = [&](StageId stage) {
      const bool timed = world.now() > async::TimePoint(kProfileEnd);
      if (timed && stage == victim && runs_left-- <= 0) throw std::runtime_error("device lost");
    };
    world.start(options, jobs);
    world.run_to_end();
    for (const Job& job : jobs) {
      require_right_end(job, options, {.breaks = {"device lost"}});
      failed += failed_with(job, "device lost") ? 1 : 0;
    }
    world.stop();
  }
  REQUIRE(failed > seeds);
}

TEST_CASE("after breaks the ring rebuilds and the queue survives") {
  uint64_t host_hits = 0;
  uint64_t breaks = 0;
  const uint64_t seeds = test::repetitions(600);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = strange_ring(dice);
    auto jobs = random_jobs(dice);
    for (Job& again : asked_again(jobs, " later")) {  // when the ring may have broken once or twice
      again.request.id += " again";
      again.arrival += std::chrono::milliseconds(dice.range(300, 2000));
      again.leave_after.reset();
      jobs.push_back(std::move(again));
    }
    const StageId victim(dice.range(0, options.stage_count - 1));
    const bool dies = dice.chance(0.5);
    int runs_left = static_cast<int>(dice.range(0, 20));
    const int runs_between = static_cast<int>(dice.range(1, 30));
    World world(seed);
    options.fault = [&](StageId stage) {
      const bool early = world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
      if (!early || stage != victim || runs_left-- > 0) return;
      runs_left = runs_between;
      ++breaks;
      if (dies) throw sim::StageDeath("device lost");
      throw std::runtime_error("device lost");
    };
    world.start(options, jobs);
    world.run_to_end();
    REQUIRE(world.head().status().ready);
    for (const Job& job : jobs) require_right_end(job, options, {.breaks = {"device lost"}});
    host_hits += world.head().status().cache.host_hit_pages;
    world.flush_to_nothing();
    world.stop();
  }
  REQUIRE(breaks > seeds);
  REQUIRE(host_hits > seeds / 6);
}

TEST_CASE("host pages outlive a break of the ring but no lost memory") {
  for (uint64_t seed = 0; seed < test::repetitions(200); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = roomy_ring(dice);
    const bool dies = dice.chance(0.5);
    const StageId victim(dice.range(0, options.stage_count - 1));
    std::vector<Job> jobs{job_at(2s, std::vector<TokenId>(40, 1)), job_at(4s, {7, 8, 9}),
                          job_at(6s, std::vector<TokenId>(40, 1))};
    bool has_failed = false;
    World world(seed);
    options.fault = [&](StageId stage) {
      if (world.now() < async::TimePoint(3s) || stage != victim || std::exchange(has_failed, true)) return;
      if (dies) throw sim::StageDeath("power cut");
      throw std::runtime_error("hiccup");
    };
    world.start(options, jobs);
    world.run_to_end();
    REQUIRE(jobs[0].tokens == expected_tokens(jobs[0], options));
    REQUIRE(jobs[1].error.has_value());
    REQUIRE(jobs[2].tokens == expected_tokens(jobs[2], options));
    const uint32_t page_size = options.head.scheduler.page_size;
    REQUIRE(jobs[2].cached_tokens == (dies ? 0 : 39 / page_size * page_size));
    world.flush_to_nothing();
    world.stop();
  }
}

TEST_CASE("a broken ring does not wait for a slow store") {
  Dice dice(1);
  auto options = ring_with_slow_store(dice, sim::StoreCall::kPut, 10s);
  std::vector<Job> jobs{job_at(2s, std::vector<TokenId>(50, 1)), job_at(4s, {7, 8, 9})};
  World world(1);
  options.fault = [&](StageId) {
    if (world.now() > async::TimePoint(4s) && world.now() < async::TimePoint(5s)) throw std::runtime_error("hiccup");
  };
  world.start(options, jobs);
  world.run_until(5s);
  REQUIRE(jobs[0].tokens.size() == 5);
  REQUIRE(jobs[1].error.has_value());
  REQUIRE_FALSE(world.head().status().ready);
  world.run_until(16s);  // what the store has begun is awaited, what it has not is not
  REQUIRE(world.head().status().ready);
  world.stop();
}

TEST_CASE("a lost link ends requests with one error and rebuilds") {
  uint64_t lost_count = 0;
  uint64_t failed = 0;
  const uint64_t seeds = test::repetitions(300);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = strange_ring(dice);
    auto jobs = random_jobs(dice);
    int messages_left = static_cast<int>(dice.range(0, 60));
    World world(seed);
    options.links.latency = std::chrono::microseconds(dice.range(1, 300));
    options.links.fault = [&]() -> std::optional<std::string> {
      if (world.now() < async::TimePoint(kProfileEnd) || messages_left-- != 0) return std::nullopt;
      ++lost_count;
      return "cable pulled";
    };
    world.start(options, jobs);
    world.run_to_end();
    REQUIRE(world.head().status().ready);
    for (const Job& job : jobs) {
      require_right_end(job, options, {.breaks = {"cable pulled"}});
      failed += failed_with(job, "cable pulled") ? 1 : 0;
    }
    world.stop();
  }
  REQUIRE(lost_count > seeds / 2);
  REQUIRE(failed > seeds / 2);
}

TEST_CASE("breaks during the profile only delay the start") {
  std::array<uint64_t, Saboteur::kWayCount> breaks{};
  const uint64_t seeds = test::repetitions(200);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = strange_ring(dice);
    options.head.scheduler.chunking = static_cast<sched::Chunking>(dice.range(1, 2));
    auto jobs = random_jobs(dice);
    for (Job& job : jobs) job.arrival += 20s;
    World world(seed);
    Saboteur saboteur(dice, options,
                      [&world] { return world.now() < async::TimePoint(5s) && !world.head().status().ready; });
    world.start(options, jobs);
    world.run_to_end(40s);
    REQUIRE(world.head().status().ready);
    for (const Job& job : jobs) require_right_end(job, options);
    for (size_t way = 0; way < breaks.size(); ++way) breaks[way] += saboteur.done()[way];
    world.flush_to_nothing();
    world.stop();
  }
  for (const uint64_t of_one_way : breaks) REQUIRE(of_one_way > seeds / 8);
}
