#include "sched/head/ring_stats.h"

#include <catch2/catch.hpp>

#include "sim/simulated_ring.h"

using namespace millrace;
using namespace std::chrono_literals;

namespace {

asio::awaitable<void> read_to_the_end(async::Runtime& runtime, sched::Engine& engine, uint32_t number,
                                      async::Duration arrival) {
  co_await async::sleep_for(runtime, arrival);
  sched::GenerateRequest request;
  request.id = std::to_string(number);
  request.prompt.assign(30, static_cast<TokenId>(number % 40));
  request.max_tokens = 12;
  auto stream = engine.submit(std::move(request), runtime);
  REQUIRE(stream.has_value());
  for (;;) {
    const sched::GenerateEvent event = co_await (*stream)->next();
    if (event.last()) co_return;
  }
}

sim::SimulatedRingOptions ring_options(uint32_t stage_count) {
  sim::SimulatedRingOptions options;
  options.stage_count = stage_count;
  for (uint32_t s = 0; s < stage_count; ++s) options.costs.push_back({100.0 + 10 * s, 3, 0.01, 0});
  options.head.scheduler.page_size = 4;
  options.head.scheduler.page_count = 400;
  options.head.scheduler.max_running = 8;
  options.head.scheduler.window = stage_count;
  options.head.scheduler.chunked_prefill_size = 16;
  options.head.scheduler.context_length = 64;
  options.head.max_queued = 64;
  options.head.heartbeat = 100ms;
  options.head.watchdog = 100s;
  return options;
}

struct Observed {
  sched::RingSnapshot snapshot;
  std::vector<sched::PlanRecord> records;
};

Observed observe(const sim::SimulatedRingOptions& options, uint32_t request_count, async::Duration gap) {
  async::VirtualWorld world(7);
  sim::SimulatedRing ring(world, options);
  async::Runtime& client_thread = world.add_thread();
  async::TaskGroup clients(client_thread);
  for (uint32_t i = 0; i < request_count; ++i) {
    clients.spawn("client", read_to_the_end(client_thread, ring.head(), i, 1ms + gap * i));
  }
  world.run(async::TimePoint(20s));
  REQUIRE(clients.size() == 0);
  const sched::RingView& stats = *ring.head().ring_stats();
  Observed observed{stats.snapshot(world.now().time_since_epoch().count()), stats.records_after(0)};
  ring.stop();
  world.run();
  return observed;
}

/// What a stage takes for a plan whose slices all begin at the same prefix is not known from a record, so costs per
/// pair are left out here.
int64_t cost_ns(const sim::SimulatedCost& cost, const sched::PlanRecord& record) {
  return static_cast<int64_t>((cost.fixed_us + cost.per_row_us * (record.prefill_rows + record.decode_rows)) * 1000.0);
}

}  // namespace

TEST_CASE("busy times are those of the simulation to the nanosecond") {
  for (const uint32_t stage_count : {1u, 2u, 4u}) {
    auto options = ring_options(stage_count);
    for (auto& cost : options.costs) cost.per_pair_us = 0;
    const Observed observed = observe(options, 12, 100us);
    REQUIRE(observed.records.size() == observed.snapshot.since_start.plans);
    std::vector<int64_t> busy_ns(stage_count);
    for (const sched::PlanRecord& record : observed.records) {
      for (uint32_t s = 0; s < stage_count; ++s) {
        const int64_t wanted = cost_ns(options.costs[s], record);
        REQUIRE(record.stages[s].end_ns - record.stages[s].begin_ns == wanted);
        busy_ns[s] += wanted;
      }
    }
    for (uint32_t s = 0; s < stage_count; ++s) REQUIRE(observed.snapshot.since_start.stages[s].busy_ns == busy_ns[s]);
    REQUIRE(observed.snapshot.since_start.prefill_tokens + observed.snapshot.since_start.decode_tokens ==
            12 * (30 + 12 - 1));
  }
}

TEST_CASE("busy and wait fill the time of each stage without a gap") {
  const Observed observed = observe(ring_options(4), 12, 3ms);
  const auto& records = observed.records;
  for (size_t s = 0; s < 4; ++s) {
    const sched::StageTotals& stage = observed.snapshot.since_start.stages[s];
    const int64_t span_ns = records.back().stages[s].end_ns - records.front().stages[s].begin_ns;
    REQUIRE(stage.busy_ns + stage.wait.total_ns() == span_ns);
    REQUIRE(stage.wait[sched::WaitCause::kLateActivations] == 0);
    REQUIRE(stage.wait[sched::WaitCause::kHeadLate] == 0);
    REQUIRE(stage.wait[sched::WaitCause::kOverhead] == 0);
  }
}

TEST_CASE("one request at a time leaves stages idle or underfilled") {
  const Observed observed = observe(ring_options(4), 3, 1s);
  const sched::StageTotals& stage = observed.snapshot.since_start.stages[1];
  REQUIRE(stage.wait[sched::WaitCause::kIdle] > 1'900'000'000);
  REQUIRE(stage.wait[sched::WaitCause::kNothingToDo] > stage.wait[sched::WaitCause::kUneven]);
  REQUIRE(stage.wait[sched::WaitCause::kFillDrain] > 0);
  REQUIRE(stage.bubble_ratio() > 0.6);
  REQUIRE(observed.snapshot.since_start.occupancy() < 2);
}
