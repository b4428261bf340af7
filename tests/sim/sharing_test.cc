#include <catch2/catch.hpp>

#include "sim/random_rings.h"
#include "sim/timed_runner.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

constexpr uint32_t kStages = 4;

sched::CostCoefficients cost_of(StageId stage) {
  return {100.0 + 20 * stage.value(), 8, 0.005, 15, 0.05};
}

/// Prompts and decode steps in changing mixtures.
std::vector<Job> mixed_jobs() {
  Dice dice(1);
  std::vector<Job> jobs(200);
  async::Duration arrival = kProfileEnd + 2ms;
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job& job = jobs[i];
    job.request.id = std::to_string(i);
    for (uint32_t token = dice.range(1, 400); token > 0; --token) {
      job.request.prompt.push_back(static_cast<TokenId>(dice.range(0, 49)));
    }
    job.request.max_tokens = dice.range(1, 60);
    job.arrival = arrival;
    arrival += std::chrono::microseconds(dice.range(0, 8000));
  }
  return jobs;
}

}  // namespace

TEST_CASE("a ring whose stages share processors learns what each costs alone") {
  for (const uint32_t processors : {1u, 2u, 3u}) {
    sim::SimulatedRingOptions options;
    options.stage_count = kStages;
    options.model.vocab_size = 50;
    sched::SchedulerOptions& scheduler = options.head.scheduler;
    scheduler.page_size = 16;
    scheduler.page_count = 1000;
    scheduler.max_running = 16;
    scheduler.window = kStages;
    scheduler.chunked_prefill_size = 256;
    scheduler.context_length = 1000;
    scheduler.stage_count = kStages;
    scheduler.chunking = sched::Chunking::kBalanced;
    scheduler.processors = processors;
    options.head.max_queued = 1000;
    options.head.heartbeat = 1s;
    options.head.watchdog = 100s;
    sim::Trace trace;
    sim::Processors shared(processors);
    const auto scratch = std::make_shared<std::byte[]>(1000);
    options.make_runner = [&](async::Runtime& runtime, StageId stage) {
      sim::StageCost cost{.coefficients = cost_of(stage)};
      if (stage != StageId(0)) cost.input_row_bytes = 1;
      if (stage.value() + 1 < kStages) cost.output_row_bytes = 1;
      return std::make_unique<sim::TimedRunner>(
          runtime, stage, cost, scratch, [] { return uint64_t{0}; }, trace, &shared);
    };
    auto jobs = mixed_jobs();
    World world(processors);
    world.start(options, jobs);
    world.run_to_end();
    const sched::RingCosts costs = world.head().ring_stats()->costs();
    REQUIRE(costs.stages.size() == kStages);
    for (uint32_t stage = 0; stage < kStages; ++stage) {
      INFO("stage " << stage << " of " << kStages << " on " << processors << " processors");
      sched::BatchShape prompt;
      prompt.add_prefill(0, 256);
      sched::BatchShape decode;
      for (int i = 0; i < 8; ++i) decode.add_decode(300);
      const sched::CostCoefficients truth = cost_of(StageId(stage));
      REQUIRE(costs.stages[stage].predict_us(prompt) == Approx(truth.predict_us(prompt)).epsilon(0.01));
      REQUIRE(costs.stages[stage].predict_us(decode) == Approx(truth.predict_us(decode)).epsilon(0.01));
    }
    world.stop();
  }
}
