#include <catch2/catch.hpp>

#include "async/task_group.h"
#include "comm/in_process_link.h"
#include "sched/steps/step_group.h"
#include "sched/steps/step_participant.h"
#include "sched/steps/step_server.h"
#include "sim/jobs.h"
#include "sim/simulated_collective.h"
#include "sim/simulated_link.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

/// A ring that is nothing but steps: work arrives at random, and each step waits for all rings.
struct ToyRing {
  ToyRing(async::Runtime& its_runtime, uint32_t seed) : runtime(its_runtime), wake(its_runtime), dice(seed) {}
  async::Runtime& runtime;
  async::WaitList wake;
  Dice dice;
  std::shared_ptr<sched::StepParticipant> steps;
  sim::SimulatedCollective* exchange = nullptr;
  uint32_t work = 0;
  uint64_t last_work_step = 0;
  std::string end_reason;
  std::optional<async::TimePoint> ended;
};

/// What a world of toy rings checks while it runs.
struct ToyWorld {
  explicit ToyWorld(uint64_t seed) : world(seed), dice(seed) {}
  async::VirtualWorld world;
  Dice dice;
  uint64_t lookahead = 24;
  std::vector<std::unique_ptr<ToyRing>> rings;
  std::vector<std::unique_ptr<tensor::Collective>> exchanges;
  std::optional<async::TimePoint> death;

  [[nodiscard]] uint64_t last_work_step() const {
    uint64_t last = 0;
    for (const auto& ring : rings) last = std::max(last, ring->last_work_step);
    return last;
  }
};

asio::awaitable<void> bring_work(ToyRing& ring) {
  for (uint32_t burst = ring.dice.range(0, 4); burst > 0; --burst) {
    co_await async::sleep_for(ring.runtime, std::chrono::microseconds(ring.dice.range(0, 20'000)));
    ring.work += ring.dice.range(1, 30);
    ring.wake.notify_all();
  }
}

asio::awaitable<void> follow(ToyRing& ring) {
  try {
    for (;;) {
      co_await ring.steps->wait_for_target();
      ring.wake.notify_all();
    }
  } catch (const ErrorException& ended) {
    ring.end_reason = ended.what();
  }
  ring.ended = ring.runtime.now();
  ring.exchange->abort(ring.end_reason);
  ring.wake.notify_all();
}

asio::awaitable<void> take_steps(ToyWorld& toys, ToyRing& ring) {
  try {
    while (ring.end_reason.empty()) {
      const bool works = ring.work > 0;
      if (!works && !ring.steps->behind()) {
        co_await ring.wake.wait();
        continue;
      }
      const uint64_t step = ring.steps->begin_step();
      if (works) {
        --ring.work;
        ring.last_work_step = step;
      }
      REQUIRE(step <= toys.last_work_step() + toys.lookahead);
      co_await async::sleep_for(ring.runtime, std::chrono::microseconds(ring.dice.range(0, works ? 200 : 20)));
      (void)co_await ring.exchange->sum(step, {});
    }
  } catch (const tensor::CollectiveAborted&) {
    co_return;
  }
}

asio::awaitable<void> join_group(sched::StepGroup& group, ToyRing& ring, uint32_t number) {
  sched::StepGroup::Membership membership = co_await group.join(number, ring.runtime);
  ring.steps = std::make_shared<sched::StepParticipant>(std::move(membership.board));
}

asio::awaitable<void> die_at(ToyWorld& toys, ToyRing& ring, async::Duration at) {
  co_await async::sleep_for(ring.runtime, at);
  toys.death = ring.runtime.now();
  ring.steps->leave("power lost");
}

void make_rings(ToyWorld& toys) {
  std::vector<std::reference_wrapper<async::Runtime>> runtimes;
  const uint32_t count = 1U << toys.dice.range(1, 3);
  toys.lookahead = toys.dice.chance(0.3) ? 24 : toys.dice.range(1, 30);
  for (uint32_t i = 0; i < count; ++i) {
    toys.rings.push_back(std::make_unique<ToyRing>(toys.world.add_thread(), toys.dice.range(0, 1U << 30)));
    runtimes.emplace_back(toys.rings.back()->runtime);
  }
  toys.exchanges = sim::SimulatedCollective::make_group(
      runtimes, {.latency = std::chrono::microseconds(toys.dice.range(0, 20)), .bytes_per_second = 0});
  for (uint32_t i = 0; i < count; ++i) {
    toys.rings[i]->exchange = static_cast<sim::SimulatedCollective*>(toys.exchanges[i].get());
  }
}

/// Runs the rings with their boards, without or with a death, and requires what the protocol promises.
void run_rings(ToyWorld& toys, bool one_dies) {
  std::vector<std::unique_ptr<async::TaskGroup>> tasks;
  const uint32_t dying = toys.dice.range(0, static_cast<uint32_t>(toys.rings.size()) - 1);
  for (uint32_t i = 0; i < toys.rings.size(); ++i) {
    ToyRing& ring = *toys.rings[i];
    tasks.push_back(std::make_unique<async::TaskGroup>(ring.runtime));
    tasks.back()->spawn("follow", follow(ring));
    tasks.back()->spawn("steps", take_steps(toys, ring));
    tasks.back()->spawn("work", bring_work(ring));
    if (one_dies && i == dying) {
      tasks.back()->spawn("death", die_at(toys, ring, std::chrono::microseconds(toys.dice.range(0, 60'000))));
    }
  }
  toys.world.run(toys.world.now() + 10s);
  for (uint32_t i = 0; i < toys.rings.size(); ++i) {
    const ToyRing& ring = *toys.rings[i];
    if (one_dies) {
      REQUIRE(ring.ended.has_value());
      REQUIRE(*ring.ended < *toys.death + 10ms);
      if (i != dying) REQUIRE(ring.end_reason.find("ring " + std::to_string(dying) + ": power lost") == 0);
      continue;
    }
    REQUIRE(ring.work == 0);
    REQUIRE_FALSE(ring.steps->behind());
    REQUIRE(ring.steps->step() == toys.rings[0]->steps->step());
    REQUIRE(ring.steps->step() <= toys.last_work_step() + toys.lookahead);
  }
  if (!one_dies) toys.rings[0]->steps->leave("done");
  toys.world.run();
  for (const auto& group : tasks) REQUIRE(group->size() == 0);
}

void run_with_word(uint64_t seed, bool one_dies) {
  ToyWorld toys(seed);
  make_rings(toys);
  sched::StepGroup group(static_cast<uint32_t>(toys.rings.size()), toys.lookahead);
  std::vector<std::unique_ptr<async::TaskGroup>> joins;
  for (uint32_t i = 0; i < toys.rings.size(); ++i) {
    joins.push_back(std::make_unique<async::TaskGroup>(toys.rings[i]->runtime));
    joins.back()->spawn("join", join_group(group, *toys.rings[i], i));
  }
  toys.world.run();
  for (const auto& ring : toys.rings) REQUIRE(ring->steps != nullptr);
  run_rings(toys, one_dies);
  toys.rings.clear();
}

void run_with_messages(uint64_t seed, bool one_dies) {
  ToyWorld toys(seed);
  make_rings(toys);
  async::Runtime& coordinator = toys.world.add_thread();
  sched::StepServer server(coordinator, toys.lookahead);
  const sim::SimulatedLinkOptions links{.latency = std::chrono::microseconds(toys.dice.range(0, 500))};
  for (uint32_t i = 0; i < toys.rings.size(); ++i) {
    ToyRing& ring = *toys.rings[i];
    comm::Link requests = sim::make_simulated_link(links, ring.runtime, coordinator, 4096);
    comm::Link steps = sim::make_simulated_link(links, coordinator, ring.runtime, 4096);
    server.add("ring " + std::to_string(i), {std::move(steps.sender), std::move(requests.receiver)});
    ring.steps = std::make_shared<sched::StepParticipant>(
        sched::make_remote_board({std::move(requests.sender), std::move(steps.receiver)}));
  }
  async::TaskGroup serving(coordinator);
  serving.spawn("coordinator", server.run());
  run_rings(toys, one_dies);
  REQUIRE(serving.size() == 0);
}

}  // namespace

TEST_CASE("a coordinator jumps ahead of the step that passes it") {
  sched::StepCoordinator coordinator(24);
  REQUIRE(coordinator.start_step(1) == 25);
  REQUIRE_FALSE(coordinator.start_step(2).has_value());
  REQUIRE_FALSE(coordinator.start_step(25).has_value());
  REQUIRE(coordinator.start_step(26) == 50);
  REQUIRE(coordinator.step() == 50);
}

TEST_CASE("rings that step together by a shared word all end") {
  for (uint64_t seed = 0; seed < test::repetitions(2000); ++seed) {
    INFO("seed " << seed);
    run_with_word(seed, false);
    run_with_word(seed, true);
  }
}

TEST_CASE("rings that step together by messages all end") {
  for (uint64_t seed = 0; seed < test::repetitions(2000); ++seed) {
    INFO("seed " << seed);
    run_with_messages(seed, false);
    run_with_messages(seed, true);
  }
}

TEST_CASE("a coordinator that stops ends all rings") {
  async::VirtualWorld world(1);
  async::Runtime& coordinator = world.add_thread();
  async::Runtime& ring = world.add_thread();
  sched::StepServer server(coordinator, 24);
  comm::Link requests = comm::make_in_process_link(ring, coordinator, 8);
  comm::Link steps = comm::make_in_process_link(coordinator, ring, 8);
  server.add("ring 0", {std::move(steps.sender), std::move(requests.receiver)});
  ToyRing toy(ring, 1);
  const auto exchanges = sim::SimulatedCollective::make_group({ring}, {});
  toy.exchange = static_cast<sim::SimulatedCollective*>(exchanges[0].get());
  toy.steps = std::make_shared<sched::StepParticipant>(
      sched::make_remote_board({std::move(requests.sender), std::move(steps.receiver)}));
  async::TaskGroup serving(coordinator);
  async::TaskGroup following(ring);
  serving.spawn("coordinator", server.run());
  following.spawn("follow", follow(toy));
  REQUIRE(toy.steps->begin_step() == 1);
  world.run();
  REQUIRE(toy.steps->behind());
  REQUIRE(server.step() == 25);
  server.stop("the coordinator has stopped");
  world.run();
  REQUIRE(toy.end_reason == "the coordinator has stopped");
  REQUIRE(serving.size() + following.size() == 0);
}
