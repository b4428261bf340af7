#include <catch2/catch.hpp>
#include <functional>

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

/// A ring of kStages stages that share `machine`; each of the ring's stages costs cost_of, and each run up to `jitter`
/// of that besides, as `chance` (0 to 1) says at the time.
struct TimedRing {
  sched::SharedMachine machine;
  double jitter = 0;
  std::function<double(async::TimePoint)> chance = [](async::TimePoint) { return 0.0; };
};

/// What the head has learnt when `jobs` have been served.
sched::RingCosts learnt_costs(const TimedRing& timed, std::vector<Job> jobs) {
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
  scheduler.processors = timed.machine.processors;
  options.head.max_queued = 1000;
  options.head.heartbeat = 1s;
  options.head.watchdog = 100s;
  std::vector<sim::StageWork> work(kStages);
  sim::Processors shared(timed.machine);
  const auto scratch = std::make_shared<std::byte[]>(1000);
  options.make_runner = [&](async::Runtime& runtime, StageId stage) {
    sim::StageCost cost{.coefficients = cost_of(stage), .jitter = timed.jitter};
    if (stage != StageId(0)) cost.input_row_bytes = 1;
    if (stage.value() + 1 < kStages) cost.output_row_bytes = 1;
    const auto random = [&] {
      const auto bits = static_cast<uint64_t>(timed.chance(runtime.now()) * 0x1.0p53);
      return std::min(bits, (uint64_t{1} << 53) - 1) << 11;
    };
    return std::make_unique<sim::TimedRunner>(runtime, cost, scratch, random, work[stage.value()], &shared);
  };
  World world(timed.machine.processors);
  world.start(options, jobs);
  world.run_to_end();
  sched::RingCosts costs = world.head().ring_stats()->costs();
  world.stop();
  return costs;
}

void require_costs_of_stages_alone(const sched::RingCosts& costs) {
  REQUIRE(costs.stages.size() == kStages);
  REQUIRE(costs.fallbacks.empty());
  for (uint32_t stage = 0; stage < kStages; ++stage) {
    INFO("stage " << stage << " of " << kStages);
    sched::BatchShape prompt;
    prompt.add_prefill(0, 256);
    sched::BatchShape decode;
    for (int i = 0; i < 8; ++i) decode.add_decode(300);
    const sched::CostCoefficients truth = cost_of(StageId(stage));
    REQUIRE(costs.stages[stage].predict_us(prompt) == Approx(truth.predict_us(prompt)).epsilon(0.01));
    REQUIRE(costs.stages[stage].predict_us(decode) == Approx(truth.predict_us(decode)).epsilon(0.01));
  }
}

}  // namespace

TEST_CASE("a ring with shared processors learns isolated costs") {
  const uint32_t processors = GENERATE(1u, 2u, 3u);
  const sched::RingCosts costs = learnt_costs({.machine = {processors, 1, {}}}, mixed_jobs());
  require_costs_of_stages_alone(costs);
  REQUIRE(costs.contention.prompt_by_prompt < 0.01);
  REQUIRE(costs.contention.other_by_other < 0.01);
}

TEST_CASE("a ring learns contention between private processors") {
  const uint32_t processors = GENERATE(2u, 3u, 4u, 8u);
  const sched::Contention truth{0.4, 0.15, 0.3, 0.6};
  const sched::RingCosts costs = learnt_costs({.machine = {processors, 1, truth}}, mixed_jobs());
  REQUIRE(costs.contention.prompt_by_prompt == Approx(truth.prompt_by_prompt).epsilon(0.03));
  REQUIRE(costs.contention.prompt_by_other == Approx(truth.prompt_by_other).margin(0.03));
  REQUIRE(costs.contention.other_by_prompt == Approx(truth.other_by_prompt).epsilon(0.05));
  REQUIRE(costs.contention.other_by_other == Approx(truth.other_by_other).epsilon(0.05));
  require_costs_of_stages_alone(costs);
}

TEST_CASE("noisy runs are not taken for contention") {
  const sched::Contention truth{0.4, 0.15, 0.3, 0.6};
  constexpr uint64_t kStarts = 40;
  sched::Contention mean;
  for (uint64_t seed = 0; seed < kStarts; ++seed) {
    uint64_t draws = 0;
    const auto chance = [&](async::TimePoint) { return uniform_at(seed, draws++); };
    const auto found = learnt_costs({.machine = {4, 1, truth}, .jitter = 0.3, .chance = chance}, {}).contention;
    mean.prompt_by_prompt += found.prompt_by_prompt / kStarts;
    mean.prompt_by_other += found.prompt_by_other / kStarts;
    mean.other_by_prompt += found.other_by_prompt / kStarts;
    mean.other_by_other += found.other_by_other / kStarts;
  }
  REQUIRE(mean.prompt_by_prompt == Approx(truth.prompt_by_prompt).margin(0.05));
  REQUIRE(mean.prompt_by_other == Approx(truth.prompt_by_other).margin(0.1));
  REQUIRE(mean.other_by_prompt == Approx(truth.other_by_prompt).margin(0.05));
  REQUIRE(mean.other_by_other == Approx(truth.other_by_other).margin(0.05));
}

TEST_CASE("a machine slow at start is not taken for contention") {
  const sched::Contention truth{0.4, 0.15, 0.3, 0.6};
  for (async::Duration begin = 0ms; begin < 60ms; begin += 3ms) {
    INFO("slow from " << begin.count() << " ns on");
    const auto chance = [&](async::TimePoint now) {
      const async::Duration at = now.time_since_epoch();
      return at >= begin && at < begin + 10ms ? 1.0 : 0.0;
    };
    const auto found = learnt_costs({.machine = {4, 1, truth}, .jitter = 1, .chance = chance}, {}).contention;
    REQUIRE(found.prompt_by_prompt == Approx(truth.prompt_by_prompt).margin(0.1));
    REQUIRE(found.other_by_prompt == Approx(truth.other_by_prompt).margin(0.1));
    REQUIRE(found.other_by_other == Approx(truth.other_by_other).margin(0.1));
  }
}
