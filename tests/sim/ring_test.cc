#include <catch2/catch.hpp>
#include <set>

#include "sim/random_rings.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

struct Outcome {
  uint64_t preemptions = 0;
  uint64_t host_hits = 0;
  uint64_t fetched = 0;
  uint64_t plans = 0;
  uint64_t trace_hash = 0;
  uint64_t steps = 0;
  uint64_t next_draw = 0;  ///< equal when as many random numbers were drawn before
};

Outcome run_world(uint64_t seed, const sim::SimulatedRingOptions& options, std::vector<Job>& jobs) {
  World world(seed);
  world.start(options, jobs);
  world.run_to_end();
  const sched::EngineStatus status = world.head().status();
  const uint64_t plans = world.head().ring_stats()->snapshot(0).since_start.plans;
  world.stop();
  return {status.preemptions,
          status.cache.host_hit_pages,
          status.cache.fetched_pages,
          plans,
          world.trace_hash(),
          world.step_count(),
          world.draw()};
}

/// The jobs that were answered to the end: neither refused nor left by their client.
std::vector<Job> ended(const std::vector<Job>& jobs) {
  std::vector<Job> chosen;
  for (const Job& job : jobs) {
    if (job.left || job.refused) continue;
    REQUIRE(job.endings == 1);
    REQUIRE(job.error.has_value() != job.finish.has_value());
    chosen.push_back(job);
  }
  return chosen;
}

}  // namespace

TEST_CASE("random rings give every request the model's own tokens, once, and leak nothing") {
  uint64_t preemptions = 0;
  uint64_t cached_tokens = 0;
  uint64_t host_hits = 0;
  uint64_t fetched = 0;
  uint64_t plans = 0;
  const uint64_t seeds = test::repetitions(1500);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    const Outcome outcome = run_world(seed, options, jobs);
    preemptions += outcome.preemptions;
    host_hits += outcome.host_hits;
    fetched += outcome.fetched;
    plans += outcome.plans;
    for (const Job& job : jobs) {
      cached_tokens += job.cached_tokens;
      const auto wanted = expected_tokens(job, options);
      if (job.refused) {
        REQUIRE(job.request.prompt.size() >= options.head.scheduler.context_length);
      } else if (job.left) {
        REQUIRE(std::equal(job.tokens.begin(), job.tokens.end(), wanted.begin()));
      } else {
        REQUIRE(job.endings == 1);
        REQUIRE_FALSE(job.error.has_value());
        REQUIRE(job.tokens == wanted);
      }
    }
  }
  REQUIRE(cached_tokens > 6 * seeds);
  REQUIRE(host_hits > seeds / 3);
  REQUIRE(fetched > seeds / 100);
  REQUIRE(plans > 100 * seeds);
  REQUIRE(preemptions > seeds / 15);  // else the pools were too large to test anything
}

namespace {

asio::awaitable<void> flush(async::Runtime& runtime, sched::Engine& engine, async::Duration at,
                            std::optional<Result<void>>& answer) {
  co_await async::sleep_for(runtime, at);
  answer = co_await engine.flush_cache(runtime, 0s);
}

}  // namespace

TEST_CASE("what was flushed comes back from the store, and a flush is refused while requests run") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    sched::SchedulerOptions& scheduler = options.head.scheduler;
    scheduler.share_prefixes = true;
    scheduler.host_page_count = 4 * scheduler.page_count;
    scheduler.write_policy = cache::WritePolicy::kWriteThrough;
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
    clients.spawn("early flush", flush(client_thread, ring.head(), 2s + 10us, refused));
    clients.spawn("late flush", flush(client_thread, ring.head(), 9s, flushed));
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

TEST_CASE("one seed gives one history") {
  for (uint64_t seed = 0; seed < test::repetitions(20); ++seed) {
    Dice dice(seed);
    const auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    auto again = jobs;
    Dice same_dice(seed);
    const auto same_options = random_ring(same_dice);  // a store remembers what it was given
    const Outcome first = run_world(seed, options, jobs);
    const Outcome second = run_world(seed, same_options, again);
    REQUIRE(first.trace_hash == second.trace_hash);
    REQUIRE(first.steps == second.steps);
    REQUIRE(first.next_draw == second.next_draw);
    const Outcome other = run_world(seed + 1000, options, again);
    REQUIRE(other.trace_hash != first.trace_hash);
  }
}

TEST_CASE("a stage that fails ends every request with one clear error, wherever it stands") {
  for (uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
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
    for (const Job& job : ended(jobs)) {
      if (job.error) REQUIRE(job.error->message.find("device lost") != std::string::npos);
    }
    world.stop();
  }
}

TEST_CASE("after a break the ring forms again by itself, and the queue survives") {
  for (uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    Job& late = jobs.emplace_back();
    late.request.id = "late";
    late.request.prompt = {1, 2, 3};
    late.request.max_tokens = 20;
    late.arrival = 10s;
    const StageId victim(dice.range(0, options.stage_count - 1));
    int runs_left = static_cast<int>(dice.range(0, 20));
    World world(seed);
    options.fault = [&](StageId stage) {
      const bool early = world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
      if (early && stage == victim && runs_left-- == 0) throw std::runtime_error("device lost");
    };
    world.start(options, jobs);
    world.run_to_end();
    REQUIRE(world.head().status().ready);
    REQUIRE(jobs.back().tokens == expected_tokens(jobs.back(), options));
    for (const Job& job : ended(jobs)) {
      if (!job.error) REQUIRE(job.tokens == expected_tokens(job, options));
    }
    world.stop();
  }
}

TEST_CASE("a lost link ends what runs with one clear error, and the ring forms again") {
  for (uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    int messages_left = static_cast<int>(dice.range(0, 60));
    World world(seed);
    options.links.latency = std::chrono::microseconds(dice.range(1, 300));
    options.links.fault = [&]() -> std::optional<std::string> {
      if (world.now() < async::TimePoint(kProfileEnd) || messages_left-- != 0) return std::nullopt;
      return "cable pulled";
    };
    world.start(options, jobs);
    world.run_to_end();
    REQUIRE(world.head().status().ready);
    for (const Job& job : ended(jobs)) {
      if (job.error) REQUIRE(job.error->message.find("cable pulled") != std::string::npos);
      else REQUIRE(job.tokens == expected_tokens(job, options));
    }
    world.stop();
  }
}

TEST_CASE("pauses of every kind change nobody's tokens") {
  for (uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    const auto mode = static_cast<sched::PauseMode>(dice.range(0, 2));
    World world(seed);
    world.start(options, jobs);
    world.run_until(kProfileEnd + std::chrono::microseconds(dice.range(2000, 20000)));
    world.head().pause(mode);
    world.run_until(5s);
    if (mode == sched::PauseMode::kRetract) {
      REQUIRE(world.head().status().free_pages == world.head().status().total_pages);
    }
    world.head().resume();
    world.run_to_end();
    for (const Job& job : ended(jobs)) {
      const bool aborted = job.finish == sched::FinishReason::kAbort;
      REQUIRE((!aborted || mode == sched::PauseMode::kAbort));
      if (!aborted) REQUIRE(job.tokens == expected_tokens(job, options));
    }
    world.stop();
  }
}

TEST_CASE("a request past its time limit ends with an error that names the limit") {
  Dice dice(5);
  auto options = random_ring(dice);
  options.costs = {{.fixed_us = 10000}};
  options.head.scheduler.max_running = 1;
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.queue_timeout = 500ms;
  options.head.run_timeout = 800ms;
  std::vector<Job> jobs(3);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].request.id = std::to_string(i);
    jobs[i].request.prompt = {1, 2, 3};
    jobs[i].request.max_tokens = i == 0 ? 1000 : 5;
    jobs[i].arrival = 1s + i * 1ms;
  }
  options.head.scheduler.page_size = 8;
  options.head.scheduler.page_count = 1000;
  options.head.scheduler.context_length = 4000;
  World world(5);
  world.start(options, jobs);
  world.run_to_end();
  REQUIRE(jobs[0].error->message.find("--run-timeout") != std::string::npos);
  REQUIRE(jobs[1].error->code == ErrorCode::kTimeout);
  REQUIRE(jobs[1].error->message.find("--queue-timeout") != std::string::npos);
  world.stop();
}

TEST_CASE("an idle ring is ready after its first empty plan and keeps its heartbeat") {
  Dice dice(1);
  auto options = random_ring(dice);
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  std::vector<Job> none;
  World world(1);
  world.start(options, none);
  REQUIRE_FALSE(world.head().status().ready);
  world.run_until(1ms);
  REQUIRE(world.head().status().ready);
  const uint64_t before = world.step_count();
  world.run_until(10s);
  REQUIRE(world.step_count() > before);
  REQUIRE(world.head().status().ready);
  world.stop();
}

TEST_CASE("a stage that never answers is named by the watchdog, and its plan") {
  for (uint32_t late = 0; late < 3; ++late) {
    INFO("stage " << late);
    Dice dice(3);
    auto options = random_ring(dice);
    options.stage_count = options.head.scheduler.stage_count = 3;
    options.head.scheduler.window = 4;
    options.head.scheduler.chunking = sched::Chunking::kFixed;  // else the profile would not end
    options.head.scheduler.has_store = false;
    options.make_store = nullptr;
    options.costs.assign(3, options.costs.front());
    options.costs[late].fixed_us = 1e12;
    options.head.queue_timeout = 300s;  // the stage never ends, so no ring forms for those who have not begun
    std::vector<Job> jobs = random_jobs(dice);
    for (Job& job : jobs) job.leave_after.reset();
    World world(3);
    world.start(options, jobs);
    world.run_to_end(1000s);
    const std::string named = fmt::format("the ring is broken: stage {} has been running plan ", late);
    int ran_count = 0;
    for (const Job& job : jobs) {
      if (job.refused) continue;
      const bool ran = job.error->message.starts_with(named);
      ran_count += ran ? 1 : 0;
      REQUIRE((ran || job.error->code == ErrorCode::kTimeout));
    }
    REQUIRE(ran_count > 0);
    world.stop();
  }
}

TEST_CASE("a plan that is late between the stages is named by the head's watchdog") {
  Dice dice(3);
  auto options = random_ring(dice);
  options.links.latency = 1000s;
  std::vector<Job> none;
  World world(1);
  world.start(options, none);
  world.run_until(105s);
  const std::string reason = world.head().status().reason;
  REQUIRE(reason ==
          "the ring is broken: plan 0 has been under way for 101.0 s, and no stage says that it is running it "
          "(--watchdog-timeout)");
  world.stop();
}
