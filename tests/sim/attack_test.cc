#include <catch2/catch.hpp>

#include "sim/siege.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

TEST_CASE("cramped rings under aborts and pauses give all their tokens") {
  Casualties casualties;
  const uint64_t seeds = test::repetitions(400);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    besiege_cramped(seed, casualties);
  }
  REQUIRE(casualties.refused == 0);
  REQUIRE(casualties.preemptions > 2 * seeds);
  REQUIRE(casualties.aborted > seeds);
  REQUIRE(casualties.timed_out > seeds / 20);
  REQUIRE(casualties.left > seeds);
  REQUIRE(casualties.whole > seeds);
  REQUIRE(casualties.flushed > seeds / 4);
  REQUIRE(casualties.fetched > seeds / 20);
}

TEST_CASE("breaking rings under aborts and pauses rebuild without leaks") {
  Casualties casualties;
  std::array<uint64_t, Saboteur::kWayCount> breaks{};
  const uint64_t seeds = test::repetitions(400);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    besiege_breaking(seed, casualties, breaks);
  }
  for (const uint64_t of_one_way : breaks) REQUIRE(of_one_way > seeds / 8);
  for (const uint64_t heard : casualties.broken) REQUIRE(heard > seeds / 20);
  REQUIRE(casualties.fetched > seeds / 20);
  REQUIRE(casualties.aborted > seeds / 10);
  REQUIRE(casualties.left > seeds);
  REQUIRE(casualties.whole > seeds);
}

TEST_CASE("a stopped ring tells every client once and leaves nothing") {
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
    for (const Job& job : jobs) {
      ended_by_it += failed_with(job, "shutting down") ? 1 : 0;
      require_right_end(job, options, {.breaks = {"shutting down", "device lost"}});
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
    if (favourite && scheduler.policy == sched::QueuePolicy::kLpm) job.request.prompt = common;
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

TEST_CASE("a request waits for a bounded number of later ones") {
  int64_t most = 0;
  int64_t max_before = 0;
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
      if (in_order) max_before = std::max(max_before, overtaken);
      // Requests that share its chunks do not count as overtaking it.
      REQUIRE(overtaken <= sched::kMaxBypasses + (in_order ? 0 : sched::kMaxBypasses + scheduler.max_running));
    }
    world.stop();
  }
  REQUIRE(most >= sched::kMaxBypasses / 2);  // else nobody was preferred
  REQUIRE(max_before >= sched::kMaxBypasses / 2);
}
