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
  uint64_t flushed = 0;
  uint64_t plans = 0;
  uint64_t trace_hash = 0;
  uint64_t steps = 0;
  uint64_t next_draw = 0;  ///< equal when as many random numbers were drawn before
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
          status.cache.host_hit_pages,
          status.cache.fetched_pages,
          flushed,
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
  uint64_t flushed = 0;
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
    flushed += outcome.flushed;
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
        require_whole_answer(job, options);
      }
    }
  }
  REQUIRE(cached_tokens > 6 * seeds);
  REQUIRE(host_hits > seeds / 3);
  REQUIRE(fetched > seeds / 100);
  REQUIRE(flushed > seeds / 2);
  REQUIRE(plans > 80 * seeds);
  REQUIRE(preemptions > seeds / 15);  // else the pools were too large to test anything
}

namespace {

asio::awaitable<void> flush_at(async::Runtime& runtime, sched::Engine& engine, async::Duration at,
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

TEST_CASE("after breaks the ring forms again by itself, the queue survives, and no host page is taken for another") {
  uint64_t host_hits = 0;
  uint64_t breaks = 0;
  const uint64_t seeds = test::repetitions(600);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    for (size_t i = jobs.size(); i > 0; --i) {  // again, when the ring may have broken once or twice
      Job again = jobs[i - 1];
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
    for (const Job& job : ended(jobs)) {
      if (!job.error) require_whole_answer(job, options);
    }
    host_hits += world.head().status().cache.host_hit_pages;
    world.flush_to_nothing();
    world.stop();
  }
  REQUIRE(breaks > seeds);
  REQUIRE(host_hits > seeds / 3);
}

namespace {

/// A random ring with a roomy host tier that gets every page.
sim::SimulatedRingOptions roomy_ring(Dice& dice) {
  auto options = random_ring(dice);
  sched::SchedulerOptions& scheduler = options.head.scheduler;
  scheduler.share_prefixes = true;
  scheduler.host_page_count = 4 * scheduler.page_count;
  scheduler.write_policy = cache::WritePolicy::kWriteThrough;
  scheduler.has_store = false;
  options.make_store = {};
  return options;
}

}  // namespace

TEST_CASE("host pages outlive a break of the ring, but not the memory of a stage") {
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

TEST_CASE("a ring that broke is not held up by what it had asked of a slow store") {
  Dice dice(1);
  auto options = roomy_ring(dice);
  options.head.scheduler.page_size = 1;
  options.head.scheduler.page_count = 200;
  options.head.scheduler.host_page_count = 800;
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.scheduler.chunked_prefill_size = 64;
  options.head.scheduler.has_store = true;
  options.head.scheduler.prefetch_policy = sched::PrefetchPolicy::kBestEffort;
  const auto shelf = std::make_shared<sim::StoreShelf>(1000);
  options.make_store = [shelf, page_size = options.head.scheduler.page_size, model = options.model,
                        stages = options.stage_count](async::Runtime& runtime, StageId stage) {
    const auto layers = [&](uint32_t end) { return static_cast<size_t>(model.layer_count) * end / stages; };
    cache::StoreIdentity identity{"model", stage.value(), stage.value() + 1, "u64", page_size, 0};
    identity.page_bytes = (layers(stage.value() + 1) - layers(stage.value())) * page_size * sizeof(uint64_t);
    return sim::make_simulated_store(runtime, identity, shelf, {.delay = [](sim::StoreCall call, size_t) {
                                       return call == sim::StoreCall::kPut ? async::Duration(10s) : async::Duration{};
                                     }});
  };
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
      else
        require_whole_answer(job, options);
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
      if (!aborted) require_whole_answer(job, options);
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

TEST_CASE("a flush that may wait is answered in time, also while there is no ring") {
  Dice dice(3);
  auto options = roomy_ring(dice);
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.scheduler.max_running = 1;
  options.costs = {{.fixed_us = 1e12}};
  std::vector<Job> jobs{job_at(1s, {1, 2, 3}), job_at(2s, {4, 5, 6})};
  World world(3);
  world.start(options, jobs);
  world.run_until(200s);
  REQUIRE_FALSE(world.head().status().ready);  // the stage never ends, so no ring forms for the one that waits
  REQUIRE(world.head().status().waiting == 1);
  std::optional<Result<void>> answer;
  const async::Duration asked = world.now().time_since_epoch();
  world.spawn(flush(world.client_thread(), world.head(), 3s, answer));
  world.run_until(asked + 2s);
  REQUIRE_FALSE(answer.has_value());
  world.run_until(asked + 4s);
  REQUIRE(answer->error().code == ErrorCode::kConflict);
  world.stop();
}
