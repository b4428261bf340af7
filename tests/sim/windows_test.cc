#include <catch2/catch.hpp>

#include "sim/random_rings.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// A small ring whose model has a window of 16 tokens.
sim::SimulatedRingOptions ring_with_window(bool all_slide) {
  sim::SimulatedRingOptions ring = small_ring();
  ring.model.window = 16;
  ring.model.all_slide = all_slide;
  ring.head.scheduler.expected_tokens = 1000;
  return ring;
}

}  // namespace

TEST_CASE("twenty windows need the memory of one") {
  for (const bool all_slide : {false, true}) {
    const auto options = ring_with_window(all_slide);
    std::vector<Job> jobs{job_at(0ms, long_prompt(200))};
    jobs.front().request.max_tokens = 150;
    World world(1);
    world.start(options, jobs);
    world.run_to_end();
    const auto windows = world.head().status().windows;
    REQUIRE(windows.size() == 1);
    REQUIRE(windows[0].window == 16);
    REQUIRE(windows[0].total_pages * 4 < 350 / 4);  // of 350 tokens
    REQUIRE(windows[0].free_pages == windows[0].total_pages);
    REQUIRE(jobs.front().tokens == expected_tokens(jobs.front(), options));
    world.stop();
  }
}

TEST_CASE("a conversation goes on from the pages of its last window") {
  const auto options = ring_with_window(false);
  std::vector<Job> jobs{job_at(0ms, long_prompt(200))};
  jobs.front().request.max_tokens = 41;
  std::vector<TokenId> second = jobs.front().request.prompt;
  const std::vector<TokenId> answer = expected_tokens(jobs.front(), options);
  second.insert(second.end(), answer.begin(), answer.end());
  second.resize(second.size() + 10, 3);
  jobs.push_back(job_at(500ms, second));
  World world(1);
  world.start(options, jobs);
  world.run_to_end();
  for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
  REQUIRE(jobs.back().cached_tokens == 240);
  world.stop();
}

TEST_CASE("requests of many lengths share a small window pool") {
  for (const bool shares : {true, false}) {
    auto options = ring_with_window(false);
    options.head.scheduler.share_prefixes = shares;
    options.head.scheduler.expected_tokens = 10'000;
    options.head.scheduler.max_running = 6;
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 20; ++i) {
      jobs.push_back(job_at(std::chrono::milliseconds(i), long_prompt(5 + 17 * i % 190)));
      jobs.back().request.max_tokens = 20 + i;
    }
    World world(2);
    world.start(options, jobs);
    world.run_to_end();
    for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
    const auto windows = world.head().status().windows;
    REQUIRE(windows.at(0).free_pages == windows.at(0).total_pages);
    world.stop();
  }
}
