#include <catch2/catch.hpp>

#include "sched/plan/pause_mode.h"
#include "sched/plan/plan_output.h"
#include "sched/stage/stage_bounds.h"
#include "sim/random_rings.h"

/// A stage that answers wrongly, late or never, and what its requests hear.
using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

/// How a stage misbehaves from now on.
struct Misbehaviour {
  bool forgets_tokens = false;  ///< those that it draws
  async::Duration delay{};      ///< before each run
};

/// The whole model in one stage that misbehaves.
class MisbehavingRunner final : public sched::StageRunner {
 public:
  MisbehavingRunner(async::Runtime& runtime, const sim::SimulatedRingOptions& ring, const Misbehaviour& how)
      : runtime_(runtime),
        model_(runtime, ring.model, {0, ring.model.layer_count, true, true, ring.costs.front()}, bounds(ring),
               [] { return uint64_t{0}; }),
        how_(how) {}
  [[nodiscard]] size_t output_row_bytes() const override { return 0; }
  [[nodiscard]] size_t input_row_bytes() const override { return 0; }
  [[nodiscard]] asio::awaitable<Result> run(const sched::StageBatch& batch, std::span<const std::byte> input) override {
    co_await async::sleep_for(runtime_, how_.delay);
    Result result = co_await model_.run(batch, input);
    for (sched::SliceOutput& output : result.outputs) {
      if (how_.forgets_tokens) output.samples.clear();
    }
    co_return result;
  }

 private:
  static sched::StageBounds bounds(const sim::SimulatedRingOptions& ring) {
    const sched::SchedulerOptions& scheduler = ring.head.scheduler;
    return {.slot_count = scheduler.max_running,
            .page_size = scheduler.page_size,
            .page_count = scheduler.page_count,
            .max_batch_tokens = sched::max_plan_tokens(scheduler),
            .vocab_size = ring.model.vocab_size,
            .windows = sched::window_pools(scheduler, {.device = scheduler.page_count})};
  }
  async::Runtime& runtime_;
  sim::SimulatedRunner model_;
  const Misbehaviour& how_;
};

sim::SimulatedRingOptions misbehaving_ring(const Misbehaviour& how) {
  Dice dice(5);
  auto options = random_ring(dice);
  options.stage_count = options.head.scheduler.stage_count = 1;
  options.rank_count = 1;
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.scheduler.has_store = false;
  options.head.scheduler.host_page_count = 0;
  options.head.scheduler.chunked_prefill_size = 16;
  options.costs = {{.fixed_us = 1000}};
  options.make_runner = [&how, ring = options](async::Runtime& runtime,
                                               StageId) -> std::unique_ptr<sched::StageRunner> {
    return std::make_unique<MisbehavingRunner>(runtime, ring, how);
  };
  return options;
}

}  // namespace

TEST_CASE("a retracted request expires also while there is no ring") {
  Misbehaviour how;
  auto options = misbehaving_ring(how);
  options.head.run_timeout = 300s;  // the watchdog's are 100 s
  std::vector<Job> jobs{job_at(1s, {1, 2, 3})};
  World world(5);
  world.start(options, jobs);
  world.run_until(1s + 2500us);
  how.delay = 1000s;
  world.run_until(2s);
  REQUIRE(jobs[0].tokens.size() > 0);
  REQUIRE(jobs[0].endings == 0);
  world.head().pause(sched::PauseMode::kRetract);
  world.run_until(250s);
  REQUIRE_FALSE(world.head().status().ready);  // its run never ends, so that no ring forms
  REQUIRE(world.head().status().waiting == 1);
  world.run_until(302s);
  REQUIRE(jobs[0].endings == 1);
  REQUIRE(jobs[0].error->code == ErrorCode::kTimeout);
  REQUIRE(jobs[0].error->message.find("--run-timeout") != std::string::npos);
  world.stop();
}

TEST_CASE("the time to first token stays fixed while later ones come") {
  Misbehaviour how{.delay = 100us};
  auto options = misbehaving_ring(how);
  options.head.scheduler.max_running = 1;
  options.links.bytes_per_second = 0;
  options.links.latency = {};
  std::vector<Job> jobs{job_at(1s, {1, 2, 3}), job_at(1s + 10us, {4, 5, 6})};
  World world(5);
  world.start(options, jobs);
  world.run_to_end();
  REQUIRE(jobs[0].timings.queued_us == 0);
  REQUIRE(jobs[0].timings.prefill_us == 1100);
  REQUIRE(jobs[1].timings.queued_us == 5 * 1100 - 10);
  REQUIRE(jobs[1].timings.prefill_us == 1100);
  world.stop();
}

TEST_CASE("an output that does not fit its plan breaks the ring") {
  Misbehaviour how{.forgets_tokens = true};
  const auto options = misbehaving_ring(how);
  std::vector<Job> jobs{job_at(1s, {1, 2, 3}), job_at(3s, {1, 2, 3})};
  World world(5);
  world.start(options, jobs);
  world.run_until(2s);
  REQUIRE(jobs[0].error->code == ErrorCode::kUnavailable);
  REQUIRE(jobs[0].error->message.find("slice 0: 0 tokens and 0 scores, wanted 1 and 0") != std::string::npos);
  how.forgets_tokens = false;
  world.run_to_end();
  REQUIRE(jobs[1].tokens == expected_tokens(jobs[1], options));
  world.stop();
}
