#include <catch2/catch.hpp>

#include "sim/random_rings.h"
#include "support/effort.h"

/// Rings that are too small for what is asked of them, under clients and administrators that interfere.
using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

/// Pages for little more than one request of full length, and a window that no load fills.
sim::SimulatedRingOptions cramped_ring(Dice& dice) {
  auto ring = strange_ring(dice);
  ring.head.max_queued = 64;
  sched::SchedulerOptions& scheduler = ring.head.scheduler;
  scheduler.page_count = 64 / scheduler.page_size + dice.range(0, 3);
  scheduler.context_length = 64;
  scheduler.max_running = dice.range(2, 12);
  scheduler.window = ring.stage_count + dice.range(0, 12);
  if (dice.chance(0.5)) scheduler.policy = sched::QueuePolicy::kPriority;
  scheduler.new_token_ratio = 0.35 * dice.range(0, 1);
  if (scheduler.host_page_count > 0) scheduler.host_page_count = dice.range(1, scheduler.page_count);
  return ring;
}

/// Prompts of which two hardly fit at once, in several priorities.
std::vector<Job> greedy_jobs(Dice& dice) {
  auto jobs = random_jobs(dice);
  jobs.resize(std::max<size_t>(jobs.size(), dice.range(8, 20)));
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job& job = jobs[i];
    job.request.id = std::to_string(i);
    while (job.request.prompt.size() < 10 || dice.chance(0.95)) {
      if (job.request.prompt.size() == 60) break;
      job.request.prompt.push_back(static_cast<TokenId>(dice.range(0, 49)));
    }
    if (job.request.max_tokens > 0) job.request.max_tokens = dice.range(1, 60);
    job.request.priority = static_cast<int32_t>(dice.range(0, 4));
    job.arrival = kProfileEnd + std::chrono::microseconds(dice.range(2000, 30'000));
    job.leave_after.reset();
  }
  return jobs;
}

/// Goes away without a word at any moment: while its request waits, between two chunks, while it is sent back.
asio::awaitable<void> leave_early(async::Runtime& runtime, sched::Engine& engine, Job& job, async::Duration patience) {
  co_await async::sleep_for(runtime, job.arrival);
  const auto stream = engine.submit(job.request, runtime);
  job.refused = stream.has_error();
  job.left = !job.refused;
  co_await async::sleep_for(runtime, patience);
}

/// Floods of aborts, and pauses of every kind that follow each other, up to `pace` apart.
asio::awaitable<void> interfere(async::Runtime& runtime, sched::Head& head, Dice dice, size_t job_count,
                                async::Duration pace) {
  const auto up_to = [&](async::Duration most) { return most * dice.range(0, 1000) / 1000; };
  co_await async::sleep_for(runtime, kProfileEnd + 2ms);
  for (uint32_t round = dice.range(1, 12); round > 0; --round) {
    co_await async::sleep_for(runtime, up_to(pace));
    if (dice.chance(0.4)) {
      for (size_t i = dice.range(0, 2); i < job_count; i += dice.range(1, 4)) (void)head.abort(std::to_string(i));
    }
    if (dice.chance(0.6)) head.pause(static_cast<sched::PauseMode>(dice.chance(0.1) ? 2 : dice.range(0, 1)));
    if (dice.chance(0.5)) co_await async::sleep_for(runtime, up_to(pace / 5));
    head.resume();
  }
}

/// What came of the jobs of some worlds.
struct Casualties {
  uint64_t preemptions = 0;
  uint64_t aborted = 0;
  uint64_t timed_out = 0;
  uint64_t lost = 0;
  uint64_t whole = 0;
  uint64_t flushed = 0;
  uint64_t fetched = 0;
};

void count_jobs(const std::vector<Job>& jobs, const sim::SimulatedRingOptions& options, Casualties& casualties) {
  for (const Job& job : ended(jobs)) {
    const bool aborted = job.finish == sched::FinishReason::kAbort;
    const bool timed_out = job.error && job.error->code == ErrorCode::kTimeout;
    const bool lost = failed_with(job, "device lost");
    casualties.aborted += aborted ? 1 : 0;
    casualties.timed_out += timed_out ? 1 : 0;
    casualties.lost += lost ? 1 : 0;
    if (timed_out) REQUIRE((options.head.queue_timeout > 0s || options.head.run_timeout > 0s));
    if (aborted || timed_out || lost) {
      require_begin_of_answer(job, options);
    } else {
      ++casualties.whole;
      require_whole_answer(job, options);
    }
  }
}

/// Clients and administrators of a world that interfere, up to `pace` apart, until its ring serves in peace again.
void besiege(World& world, uint64_t seed, Dice& dice, const sim::SimulatedRingOptions& options, std::vector<Job>& jobs,
             async::Duration pace, Casualties& casualties) {
  if (options.make_store) {  // as a server before left it
    World before(seed);
    auto same = asked_again(jobs, " before");
    before.start(options, same);
    before.run_to_end();
    before.stop();
  }
  auto leaving = asked_again(greedy_jobs(dice), " by those who leave");
  world.start(options, jobs);
  for (size_t i = 0; i < leaving.size(); ++i) {
    leaving[i].request.id = "leaving " + std::to_string(i);
    leaving[i].arrival += pace * dice.range(0, 4);
    const async::Duration patience = std::chrono::microseconds(dice.range(0, 20'000));
    world.spawn(leave_early(world.client_thread(), world.head(), leaving[i], patience));
  }
  world.spawn(interfere(world.client_thread(), world.head(), Dice(seed + 1'000'000), jobs.size(), pace));
  world.spawn(flush_now_and_then(world.client_thread(), world.head(), Dice(seed + 2'000'000), casualties.flushed));
  world.run_to_end();
  world.flush_to_nothing();
  casualties.preemptions += world.head().status().preemptions;
  casualties.fetched += world.head().status().cache.fetched_pages;
  count_jobs(jobs, options, casualties);
  world.stop();
}

/// With limits of time that some requests exceed.
sim::SimulatedRingOptions impatient_ring(Dice& dice) {
  auto options = cramped_ring(dice);
  if (dice.chance(0.2)) options.head.queue_timeout = std::chrono::milliseconds(dice.range(1, 300));
  if (dice.chance(0.2)) options.head.run_timeout = std::chrono::milliseconds(dice.range(1, 300));
  return options;
}

}  // namespace

TEST_CASE("cramped rings under aborts, pauses and clients that leave give everyone their tokens and leak nothing") {
  Casualties casualties;
  const uint64_t seeds = test::repetitions(400);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = impatient_ring(dice);
    auto jobs = greedy_jobs(dice);
    World world(seed);
    besiege(world, seed, dice, options, jobs, 10ms, casualties);
    REQUIRE(std::ranges::none_of(jobs, [](const Job& job) { return job.refused; }));
  }
  REQUIRE(casualties.preemptions > 2 * seeds);
  REQUIRE(casualties.aborted > seeds);
  REQUIRE(casualties.timed_out > seeds / 20);
  REQUIRE(casualties.whole > seeds);
  REQUIRE(casualties.flushed > seeds / 4);
  REQUIRE(casualties.fetched > seeds / 20);
}

TEST_CASE("rings that break under aborts, pauses and clients that leave form again and leak nothing") {
  Casualties casualties;
  const uint64_t seeds = test::repetitions(400);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = impatient_ring(dice);
    auto jobs = greedy_jobs(dice);
    for (Job& job : jobs) job.arrival += std::chrono::milliseconds(dice.range(0, 1000));
    const StageId victim(dice.range(0, options.stage_count - 1));
    const bool dies = dice.chance(0.5);
    const int runs_between = static_cast<int>(dice.range(5, 60));
    int runs_left = runs_between;
    World world(seed);
    options.fault = [&](StageId stage) {
      const bool early = world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
      if (!early || stage != victim || runs_left-- > 0) return;
      runs_left = runs_between;
      if (dies) throw sim::StageDeath("device lost");
      throw std::runtime_error("device lost");
    };
    besiege(world, seed, dice, options, jobs, 100ms, casualties);
    for (const Job& job : jobs) {
      if (job.refused) REQUIRE(job.error->code == ErrorCode::kUnavailable);
    }
  }
  REQUIRE(casualties.fetched > seeds / 20);
  REQUIRE(casualties.lost > seeds);
  REQUIRE(casualties.aborted > seeds / 10);
  REQUIRE(casualties.whole > seeds);
}

TEST_CASE("whenever a ring stops, everyone hears of it once and nothing is left of it") {
  uint64_t ended_by_it = 0;
  const uint64_t seeds = test::repetitions(300);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = strange_ring(dice);
    auto jobs = random_jobs(dice);
    const bool breaks = dice.chance(0.3);
    World world(seed);
    options.fault = [&](StageId) {
      const bool late = world.now() > async::TimePoint(kProfileEnd + 10ms);
      if (breaks && late && world.now() < async::TimePoint(kProfileEnd + 60ms)) throw std::runtime_error("device lost");
    };
    world.start(options, jobs);
    uint64_t flushed = 0;
    world.spawn(flush_now_and_then(world.client_thread(), world.head(), Dice(seed + 2'000'000), flushed));
    world.run_until(dice.chance(0.2) ? kProfileEnd * dice.range(0, 100) / 100
                                     : kProfileEnd + std::chrono::microseconds(dice.range(0, 100'000)));
    world.stop();
    for (const Job& job : ended(jobs)) {
      if (failed_with(job, "shutting down")) ++ended_by_it;
      if (failed_with(job, "shutting down") || failed_with(job, "device lost")) {
        require_begin_of_answer(job, options);
      } else {
        require_whole_answer(job, options);
      }
    }
  }
  REQUIRE(ended_by_it > seeds / 2);
}

namespace {

/// A stream of requests that the policy prefers, faster than the ring serves them, and a few of those that it doesn't.
struct Stream {
  std::vector<Job> jobs;
  size_t first_favourite = 0;
};

Stream unfair_stream(Dice& dice, const sched::SchedulerOptions& scheduler) {
  Stream stream;
  stream.first_favourite = dice.range(1, 4);
  stream.jobs.resize(stream.first_favourite + 3 * sched::kMaxBypasses);
  const std::vector<TokenId> common(16, 3);
  async::Duration arrival = kProfileEnd + 2ms;
  for (size_t i = 0; i < stream.jobs.size(); ++i) {
    const bool favourite = i >= stream.first_favourite;
    Job& job = stream.jobs[i];
    job.request.id = std::to_string(i);
    if (favourite && scheduler.policy == sched::QueuePolicy::kLongestPrefix) job.request.prompt = common;
    const uint32_t length = favourite ? dice.range(1, 4) : dice.range(30, 60);
    for (uint32_t token = 0; token < length; ++token) {
      job.request.prompt.push_back(static_cast<TokenId>(dice.range(4, 49)));
    }
    job.request.max_tokens = favourite ? dice.range(1, 4) : dice.range(1, 40);
    job.request.priority = favourite ? static_cast<int32_t>(dice.range(1, 3)) : 0;
    job.arrival = arrival;
    if (favourite) arrival += std::chrono::microseconds(dice.range(0, 20));
  }
  return stream;
}

/// Later arrivals that had their first token before `job`.
int64_t overtaken_by(const Job& job, const std::vector<Job>& jobs) {
  return std::ranges::count_if(jobs, [&](const Job& other) {
    return other.arrival > job.arrival && other.first_token && other.first_token < job.first_token;
  });
}

}  // namespace

TEST_CASE("nobody waits for more than a bounded number of later requests, whatever the policy prefers") {
  int64_t most = 0;
  int64_t most_before = 0;
  for (uint64_t seed = 0; seed < test::repetitions(100); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = cramped_ring(dice);
    options.head.max_queued = 1000;
    options.model.faulty_one_in = 0;
    sched::SchedulerOptions& scheduler = options.head.scheduler;
    // Chunks too small for a short prompt to go along with one, and no wait for a prefetch: then only the order counts.
    const bool in_order = dice.chance(0.5);
    if (in_order) {
      scheduler.chunking = sched::Chunking::kFixed;
      scheduler.chunked_prefill_size = dice.range(1, 3);
      scheduler.prefetch_policy = sched::PrefetchPolicy::kBestEffort;
    }
    auto stream = unfair_stream(dice, options.head.scheduler);
    World world(seed);
    world.start(options, stream.jobs);
    world.run_to_end(60s);
    for (size_t i = 0; i < stream.jobs.size(); ++i) {
      const Job& job = stream.jobs[i];
      REQUIRE(job.tokens == expected_tokens(job, options));
      if (i >= stream.first_favourite) continue;
      const int64_t overtaken = overtaken_by(job, stream.jobs);
      most = std::max(most, overtaken);
      if (in_order) most_before = std::max(most_before, overtaken);
      // Those that go along with its chunks don't count as going before it.
      REQUIRE(overtaken <= sched::kMaxBypasses + (in_order ? 0 : sched::kMaxBypasses + scheduler.max_running));
    }
    world.stop();
  }
  REQUIRE(most >= sched::kMaxBypasses / 2);  // else nobody was preferred
  REQUIRE(most_before >= sched::kMaxBypasses / 2);
}
