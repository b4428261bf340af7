#include <array>
#include <catch2/catch.hpp>

#include "sim/random_rings.h"

/// What the head gives up on, and what it says then.
using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

TEST_CASE("a request past its limit ends with an error that names it") {
  Dice dice(5);
  auto options = random_ring(dice);
  options.make_store = {};
  options.head.scheduler.has_store = false;
  options.head.scheduler.host_page_count = 0;
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

TEST_CASE("a request waits for its prefetch as the policy says") {
  using sched::PrefetchPolicy;
  const auto [policy, timeout, waits, cached] = GENERATE(
      table<PrefetchPolicy, async::Duration, async::Duration, bool>({{PrefetchPolicy::kBestEffort, 0s, 0s, false},
                                                                     {PrefetchPolicy::kTimeout, 500ms, 500ms, false},
                                                                     {PrefetchPolicy::kTimeout, 9s, 3s, true},
                                                                     {PrefetchPolicy::kWaitComplete, 0s, 3s, true}}));
  Dice dice(2);
  auto options = ring_with_slow_store(dice, sim::StoreCall::kGet, 1s);  // 39 of them, 16 at a time
  options.head.scheduler.prefetch_policy = policy;
  options.head.prefetch_timeout = timeout;
  const std::vector<TokenId> prompt(40, 1);
  std::vector<Job> jobs{job_at(2s, prompt), job_at(10s, prompt)};
  World world(2);
  world.start(options, jobs);
  world.run_until(5s);
  world.flush_to_nothing();  // but for the store
  world.run_to_end();
  for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
  REQUIRE(jobs[1].cached_tokens == (cached ? 39 : 0));
  const async::Duration waited = std::chrono::microseconds(static_cast<int64_t>(jobs[1].timings.queued_us));
  REQUIRE(waited >= waits);
  REQUIRE(waited < waits + 200ms);  // of virtual time: it is looked at every 100 ms
  world.stop();
}

TEST_CASE("a full queue refuses the next request") {
  Dice dice(5);
  auto options = random_ring(dice);
  options.costs = {{.fixed_us = 10000}};
  options.head.scheduler.max_running = 1;
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.max_queued = 2;
  std::vector<Job> jobs;
  for (size_t i = 0; i < 4; ++i) jobs.push_back(job_at(1s + i * 5ms, {1, 2, 3}));
  World world(5);
  world.start(options, jobs);
  world.run_to_end();
  for (size_t i = 0; i < 3; ++i) REQUIRE(jobs[i].tokens == expected_tokens(jobs[i], options));
  REQUIRE(jobs[3].endings == 1);
  REQUIRE(jobs[3].tokens.empty());
  REQUIRE(jobs[3].error->code == ErrorCode::kExhausted);
  REQUIRE_THAT(jobs[3].error->message, Catch::Contains(" 2 ") && Catch::EndsWith("(--max-queued-requests)"));
  world.stop();
}

TEST_CASE("an idle ring takes a burst of all that can start and wait") {
  Dice dice(5);
  auto options = random_ring(dice);
  options.costs = {{.fixed_us = 10000}};
  options.head.scheduler.max_running = 8;
  options.head.scheduler.page_size = 8;
  options.head.scheduler.page_count = 1000;
  options.head.scheduler.context_length = 4000;
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.max_queued = 4;
  std::vector<Job> jobs;
  for (TokenId i = 0; i < 13; ++i) {
    jobs.push_back(job_at(1s, {1, 2, i}));
    jobs.back().request.id = std::to_string(i);
  }
  World world(5);
  world.start(options, jobs);
  world.run_to_end();
  const auto is_answered = [&](const Job& job) { return job.tokens == expected_tokens(job, options); };
  REQUIRE(std::ranges::count_if(jobs, is_answered) == 12);
  REQUIRE(std::ranges::count_if(jobs, exceeded_queue) == 1);
  world.stop();
}

TEST_CASE("a full queue ends a lower request once for a higher one") {
  Dice dice(5);
  auto options = random_ring(dice);
  options.costs = {{.fixed_us = 10000}};
  options.head.scheduler.policy = sched::QueuePolicy::kPriority;
  options.head.scheduler.max_running = 1;
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.max_queued = 2;
  std::vector<Job> jobs;
  for (size_t i = 0; i < 5; ++i) jobs.push_back(job_at(1s + i * 5ms, {1, 2, 3}));
  const std::array priorities = {9, 1, 2, 3, 0};
  for (size_t i = 0; i < 5; ++i) jobs[i].request.priority = priorities.at(i);
  World world(5);
  world.start(options, jobs);
  world.run_to_end();
  for (const size_t i : {0, 2, 3}) REQUIRE(jobs[i].tokens == expected_tokens(jobs[i], options));
  for (const size_t i : {1, 4}) {
    REQUIRE(jobs[i].endings == 1);
    REQUIRE(jobs[i].tokens.empty());
    REQUIRE(jobs[i].error->code == ErrorCode::kExhausted);
  }
  REQUIRE(jobs[1].error->code == ErrorCode::kExhausted);
  REQUIRE_THAT(jobs[1].error->message, Catch::Contains("priority") && Catch::EndsWith("(--max-queued-requests)"));
  world.stop();
}

namespace {

/// Lets go of a stream and uses its request's id again at once.
asio::awaitable<void> use_id_again(async::Runtime& runtime, sched::Engine& engine, Job& job) {
  const auto is_in_use = [&] {
    const auto refused = engine.submit(job.request, runtime);
    return refused.has_error() && refused.error().code == ErrorCode::kConflict;
  };
  co_await async::sleep_for(runtime, job.arrival);
  {
    const auto first = engine.submit(job.request, runtime);
    REQUIRE(first.has_value());
    REQUIRE(is_in_use());
    co_await async::sleep_for(runtime, 50ms);
  }
  REQUIRE_FALSE(engine.abort(job.request.id));
  const auto second = engine.submit(job.request, runtime);
  REQUIRE(second.has_value());
  co_await async::sleep_for(runtime, 100ms);  // the first one's end is booked meanwhile
  REQUIRE(is_in_use());
  REQUIRE(engine.abort(job.request.id));
  while (!job.finish) {
    const sched::GenerateEvent event = co_await (*second)->next();
    job.finish = event.finish;
  }
  REQUIRE_FALSE(is_in_use());
}

}  // namespace

TEST_CASE("the id of a request is free when its stream has gone") {
  Dice dice(5);
  auto options = random_ring(dice);
  options.costs = {{.fixed_us = 10000}};
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.scheduler.page_size = 8;
  options.head.scheduler.page_count = 1000;
  options.head.scheduler.context_length = 4000;
  std::vector<Job> none;
  Job job = job_at(1s, {1, 2, 3});
  job.request.max_tokens = 1000;
  World world(5);
  world.start(options, none);
  world.spawn(use_id_again(world.client_thread(), world.head(), job));
  world.run_to_end();
  REQUIRE(job.finish == sched::FinishReason::kAbort);
  world.stop();
}

TEST_CASE("an idle ring is ready after a heartbeat and keeps it") {
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

TEST_CASE("a head without requests has no time limits to look at") {
  const auto steps_of_ten_seconds = [](async::Duration limit) {
    Dice dice(1);
    auto options = random_ring(dice);
    options.head.queue_timeout = options.head.run_timeout = options.head.prefetch_timeout = limit;
    std::vector<Job> none;
    World world(1);
    world.start(options, none);
    world.run_until(10s);
    const uint64_t steps = world.step_count();
    world.stop();
    return steps;
  };
  REQUIRE(steps_of_ten_seconds(300ms) == steps_of_ten_seconds(0s));
}

TEST_CASE("the watchdog names a stage that never replies and its plan") {
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

TEST_CASE("the watchdog of the head names a plan late between stages") {
  Dice dice(3);
  auto options = random_ring(dice);
  options.links.latency = 1000s;
  std::vector<Job> none;
  World world(1);
  world.start(options, none);
  world.run_until(105s);
  const std::string reason = world.head().status().reason;
  REQUIRE(reason ==
          "the ring is broken: plan 0 has been in flight for 101.0 s, and no stage reports that it runs it "
          "(--watchdog-timeout)");
  world.stop();
}

TEST_CASE("a waiting flush is answered in time also without a ring") {
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

TEST_CASE("a flush with pages on their way is refused or waits 5 s") {
  Dice dice(1);
  auto options = ring_with_slow_store(dice, sim::StoreCall::kPut, 10s);
  options.head.heartbeat = 100s;  // nothing else wakes the head
  std::vector<Job> jobs{job_at(2s, {1, 2, 3})};
  World world(1);
  world.start(options, jobs);
  world.run_until(3s);
  REQUIRE(jobs[0].endings == 1);
  std::optional<Result<void>> refused;
  std::optional<Result<void>> patient;
  const async::Duration asked = world.now().time_since_epoch();
  world.spawn(flush(world.client_thread(), world.head(), 0s, refused));
  world.spawn(flush(world.client_thread(), world.head(), 30s, patient));
  world.run_until(asked + 4900ms);
  REQUIRE_FALSE(refused.has_value());
  world.run_until(asked + 5200ms);
  REQUIRE(refused->error().code == ErrorCode::kConflict);
  REQUIRE(refused->error().message.find("still being copied") != std::string::npos);
  REQUIRE(world.head().status().cached_host_pages == 7);
  world.run_until(11900ms);
  REQUIRE_FALSE(patient.has_value());
  world.run_until(12500ms);
  REQUIRE_FALSE(patient->has_error());
  REQUIRE(world.head().status().cached_host_pages == 0);
  world.stop();
}

TEST_CASE("acks of a store do not wait for plans in the stages") {
  Dice dice(1);
  auto options = ring_with_slow_store(dice, sim::StoreCall::kPut, 0s, 4);
  sched::SchedulerOptions& scheduler = options.head.scheduler;
  options.costs = {{.fixed_us = 100'000}};
  options.links = {};
  scheduler.window = 8;
  scheduler.max_running = 4;
  scheduler.context_length = 200;
  scheduler.chunked_prefill_size = 16;
  scheduler.prefetch_policy = sched::PrefetchPolicy::kWaitComplete;
  std::vector<TokenId> longer(160);
  for (size_t i = 0; i < longer.size(); ++i) longer[i] = static_cast<TokenId>(i % 7 + 1);
  std::vector<Job> jobs{job_at(2s, longer), job_at(2700ms, {3, 2, 1})};
  World world(1);
  world.start(options, jobs);
  world.run_to_end();
  REQUIRE(jobs[1].tokens == expected_tokens(jobs[1], options));
  // The probe goes with the next plan, the request with the one after; the ring is eight plans long.
  REQUIRE(jobs[1].timings.queued_us <= 200'000);
  world.stop();
}
