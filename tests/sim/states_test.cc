#include <catch2/catch.hpp>

#include "sched/scheduler/pool_room.h"
#include "sim/random_rings.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// A small ring whose model has layers that see all tokens and layers with states.
sim::SimulatedRingOptions ring_with_states() {
  sim::SimulatedRingOptions ring = small_ring();
  ring.model.state_one_in = 2;
  ring.head.scheduler.expected_tokens = 250;  // three pages for each fourth of the pool
  return ring;
}

/// Returns the next turn of a conversation: a job's prompt, its output and `count` more tokens.
std::vector<TokenId> next_turn(const Job& job, const sim::SimulatedRingOptions& options, size_t count) {
  std::vector<TokenId> prompt = job.request.prompt;
  const std::vector<TokenId> output = expected_tokens(job, options);
  prompt.insert(prompt.end(), output.begin(), output.end());
  prompt.resize(prompt.size() + count, 3);
  return prompt;
}

}  // namespace

TEST_CASE("a sequence of any length needs two states and a snapshot") {
  auto options = ring_with_states();
  options.head.scheduler.expected_tokens = 10'000;
  std::vector<Job> jobs{job_at(0ms, long_prompt(300))};
  jobs.front().request.max_tokens = 400;
  World world(1);
  world.start(options, jobs);
  world.run_to_end();
  const auto windows = world.head().status().windows;
  REQUIRE(windows.size() == 1);
  REQUIRE(windows[0].kind == GroupKind::kState);
  REQUIRE(windows[0].total_pages == 3);
  REQUIRE(windows[0].free_pages == 3);
  REQUIRE(jobs.front().tokens == expected_tokens(jobs.front(), options));
  world.stop();
}

TEST_CASE("a conversation goes on from its last state") {
  for (const int32_t state_one_in : {1, 2}) {
    auto options = ring_with_states();
    options.model.state_one_in = state_one_in;
    std::vector<Job> jobs{job_at(0ms, long_prompt(200))};
    jobs.front().request.max_tokens = 41;
    jobs.push_back(job_at(500ms, next_turn(jobs.front(), options, 10)));
    // A client that drops the output goes on from the end of the prompt.
    std::vector<TokenId> without_output = long_prompt(200);
    without_output.resize(230, 5);
    jobs.push_back(job_at(1000ms, without_output));
    World world(1);
    world.start(options, jobs);
    world.run_to_end();
    for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
    REQUIRE(jobs[1].cached_tokens == 240);
    REQUIRE(jobs[2].cached_tokens == 200);
    world.stop();
  }
}

TEST_CASE("drafts of a model with states change no token") {
  for (const int32_t state_one_in : {1, 2}) {
    auto options = ring_with_states();
    options.model.state_one_in = state_one_in;
    options.head.scheduler.draft_tokens = 6;
    options.head.scheduler.max_running = 4;
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 6; ++i) {
      jobs.push_back(job_at(std::chrono::milliseconds(3 * i), long_prompt(30 + 17 * i)));
      jobs.back().request.max_tokens = 60;
      // Every ninth token of the prediction is wrong.
      jobs.back().request.prediction = expected_tokens(jobs.back(), options);
      for (size_t at = i; at < jobs.back().request.prediction.size(); at += 9) jobs.back().request.prediction[at] ^= 1;
    }
    World world(3);
    world.start(options, jobs);
    world.run_to_end();
    for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
    const sched::EngineStatus status = world.head().status();
    constexpr auto kPrediction = static_cast<size_t>(sched::DraftSource::kPrediction);
    REQUIRE(status.drafts.accepted[kPrediction] > 100);
    REQUIRE(status.drafts.drafted[kPrediction] > status.drafts.accepted[kPrediction] + 10);
    world.stop();
  }
}

TEST_CASE("choices of one prompt share its state") {
  auto options = ring_with_states();
  options.head.scheduler.max_running = 4;
  std::vector<Job> jobs;
  for (uint32_t i = 0; i < 4; ++i) {
    jobs.push_back(job_at(0ms, long_prompt(41)));
    jobs.back().request.id = std::to_string(i);
    jobs.back().request.sampling.seed = i;
    jobs.back().request.sampling.temperature = 1.0F;
  }
  World world(1);
  world.start(options, jobs);
  world.run_to_end();
  for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
  for (size_t i = 1; i < 4; ++i) REQUIRE(jobs[i].cached_tokens == 40);
  world.stop();
}

TEST_CASE("prompts that branch off share a state from the third on") {
  const auto options = ring_with_states();
  std::vector<Job> jobs;
  for (uint32_t i = 0; i < 4; ++i) {
    std::vector<TokenId> prompt = long_prompt(102);
    prompt.resize(150, static_cast<TokenId>(10 + i));
    jobs.push_back(job_at(200ms * i, prompt));
  }
  World world(1);
  world.start(options, jobs);
  world.run_to_end();
  for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
  REQUIRE(jobs[1].cached_tokens == 0);
  REQUIRE(jobs[2].cached_tokens == 100);
  REQUIRE(jobs[3].cached_tokens == 100);
  world.stop();
}

TEST_CASE("states come back from the host and from the store") {
  for (const bool has_store : {false, true}) {
    auto options = ring_with_states();
    sched::SchedulerOptions& scheduler = options.head.scheduler;
    scheduler.host_page_count = 1000;
    scheduler.snapshot_pages = 10;
    if (has_store) {
      scheduler.has_store = true;
      scheduler.prefetch_policy = sched::PrefetchPolicy::kWaitComplete;
      const auto store_backend = std::make_shared<sim::SimulatedStoreBackend>(1000);
      options.make_store = [=](async::Runtime& runtime, const cache::StoreIdentity& identity) {
        return sim::make_simulated_store(runtime, identity, store_backend, {});
      };
    }
    std::vector<Job> jobs{job_at(0ms, long_prompt(200))};
    jobs.front().request.max_tokens = 41;
    // Others push its states off the device.
    for (uint32_t i = 0; i < 6; ++i) {
      std::vector<TokenId> other = long_prompt(150);
      other.front() = static_cast<TokenId>(20 + i);
      jobs.push_back(job_at(300ms + 100ms * i, other));
    }
    jobs.push_back(job_at(2000ms, next_turn(jobs.front(), options, 10)));
    // One that branches off goes on from the deepest snapshot before.
    std::vector<TokenId> branch = long_prompt(170);
    branch.resize(200, 6);
    jobs.push_back(job_at(1950ms, branch));
    World world(1);
    world.start(options, jobs);
    if (has_store) {
      world.run_until(1500ms);
      std::optional<Result<void>> flushed;
      world.spawn(flush(world.client_thread(), world.head(), 100ms, flushed));
      world.run_until(1900ms);
      REQUIRE(flushed.has_value());
      REQUIRE_FALSE(flushed->has_error());
    }
    world.run_to_end();
    for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
    REQUIRE(jobs.back().cached_tokens == 160);
    REQUIRE(jobs[jobs.size() - 2].cached_tokens == 240);
    world.stop();
  }
}

TEST_CASE("requests of many lengths share a small pool of states") {
  for (const bool shares : {true, false}) {
    auto options = ring_with_states();
    options.head.scheduler.share_prefixes = shares;
    options.head.scheduler.expected_tokens = 10'000;
    options.head.scheduler.max_running = 6;
    options.head.scheduler.policy = sched::QueuePolicy::kPriority;
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 20; ++i) {
      jobs.push_back(job_at(std::chrono::milliseconds(i), long_prompt(5 + 17 * i % 190)));
      jobs.back().request.max_tokens = 20 + i;
      jobs.back().request.priority = static_cast<int32_t>(i % 3);
    }
    World world(2);
    world.start(options, jobs);
    world.run_to_end();
    for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
    const sched::EngineStatus status = world.head().status();
    REQUIRE(status.preemptions > 0);  // the pool holds one sequence
    REQUIRE(status.windows.at(0).total_pages == 3);
    REQUIRE(status.windows.at(0).free_pages == 3);
    world.stop();
  }
}

TEST_CASE("short requests run at once in a small pool") {
  for (const uint32_t window : {0u, 16u}) {
    auto options = ring_with_states();
    options.model.window = window;
    sched::SchedulerOptions& scheduler = options.head.scheduler;
    scheduler.windows = options.model.windows();
    scheduler.expected_tokens = 0;
    scheduler.page_count = 64;
    scheduler.context_length = 256;
    scheduler.max_running = 8;
    scheduler.new_token_ratio = 0;
    for (const bool all : {false, true}) {
      scheduler.window_sequences = all ? 8 : 0;
      const sched::Concurrency room = sched::concurrency_at(scheduler, 24);
      REQUIRE((room.requests == 8) == all);
      std::vector<Job> jobs;
      for (uint32_t i = 0; i < 24; ++i) {
        jobs.push_back(job_at(0ms, std::vector<TokenId>(12, static_cast<TokenId>(i + 1))));
        jobs.back().request.id = std::to_string(i);
        jobs.back().request.max_tokens = 12;
      }
      World world(7);
      world.start(options, jobs);
      uint32_t peak = 0;
      for (int i = 0; i < 1000; ++i) {
        world.run_until(async::Duration(100us * i));
        peak = std::max(peak, world.head().status().running);
      }
      world.run_to_end();
      for (const Job& job : jobs) {
        INFO((job.error ? job.error->message : ""));
        REQUIRE(job.tokens == expected_tokens(job, options));
      }
      REQUIRE(peak == room.requests);
      REQUIRE(world.head().model_info().concurrency.back().tokens == 256);
      world.stop();
    }
  }
}
