#include <catch2/catch.hpp>

#include "async/task_group.h"
#include "sched/steps/step_coordinator.h"
#include "sched/steps/step_participant.h"
#include "sim/jobs.h"
#include "sim/simulated_collective.h"
#include "sim/simulated_steps.h"
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

asio::awaitable<void> join_group(sched::StepEpochs& epochs, ToyRing& ring, uint32_t number) {
  sched::StepEpochs::Membership membership = co_await epochs.join(number, ring.runtime, {});
  ring.steps = std::make_shared<sched::StepParticipant>(std::move(membership.board));
}

asio::awaitable<void> join_in_vain(sched::StepEpochs& epochs, async::Runtime& runtime, uint32_t number,
                                   std::string& failure) {
  try {
    (void)co_await epochs.join(number, runtime, {});
  } catch (const ErrorException& interrupted) {
    failure = interrupted.what();
  }
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

/// The rings are in several processes: some in that of the coordinator, others in one each.
struct Processes {
  Processes(ToyWorld& its_toys, uint32_t local) : toys(its_toys), group(ring_count(), its_toys.lookahead) {
    const sim::SimulatedLinkOptions links{.latency = std::chrono::microseconds(toys.dice.range(0, 500))};
    for (uint32_t i = local; i < ring_count(); ++i) {
      connections.push_back(
          std::make_unique<sim::SimulatedSteps>(toys.world, group, i, ring_count(), links, sched::StepEpochs::EndFn()));
    }
    for (uint32_t i = 0; i < ring_count(); ++i) {
      joins.push_back(std::make_unique<async::TaskGroup>(toys.rings[i]->runtime));
      joins.back()->spawn("join", join_group(i < local ? group : connections[i - local]->epochs(), *toys.rings[i], i));
    }
    run_a_while();
    for (const auto& ring : toys.rings) REQUIRE(ring->steps != nullptr);
  }
  ~Processes() {
    for (const auto& connection : connections) connection->stop();
    toys.world.run();
  }
  [[nodiscard]] uint32_t ring_count() const { return static_cast<uint32_t>(toys.rings.size()); }
  void run_a_while() { toys.world.run(toys.world.now() + 100ms); }

  ToyWorld& toys;
  sched::StepGroup group;
  std::vector<std::unique_ptr<sim::SimulatedSteps>> connections;
  std::vector<std::unique_ptr<async::TaskGroup>> joins;
};

void run_with_messages(uint64_t seed, bool one_dies) {
  ToyWorld toys(seed);
  make_rings(toys);
  {
    Processes processes(toys, toys.dice.range(0, static_cast<uint32_t>(toys.rings.size()) - 1));
    run_rings(toys, one_dies);
    for (const auto& ring : toys.rings) ring->steps = nullptr;
  }
  toys.rings.clear();
}

/// Breaks the connection of one ring's process. Both sides end by name, and can join again.
void cut_a_connection(uint64_t seed) {
  ToyWorld toys(seed);
  make_rings(toys);
  {
    Processes processes(toys, 1);
    const uint32_t cut = toys.dice.range(1, processes.ring_count() - 1);
    std::vector<std::unique_ptr<async::TaskGroup>> tasks;
    for (const auto& ring : toys.rings) {
      tasks.push_back(std::make_unique<async::TaskGroup>(ring->runtime));
      tasks.back()->spawn("follow", follow(*ring));
      tasks.back()->spawn("steps", take_steps(toys, *ring));
      tasks.back()->spawn("work", bring_work(*ring));
    }
    toys.world.run(toys.world.now() + std::chrono::microseconds(toys.dice.range(0, 60'000)));
    processes.connections[cut - 1]->break_off("cable cut");
    const async::TimePoint death = toys.world.now();
    toys.world.run(death + 1s);
    for (uint32_t i = 0; i < processes.ring_count(); ++i) {
      ToyRing& ring = *toys.rings[i];
      REQUIRE(ring.ended.has_value());
      REQUIRE(*ring.ended < death + 10ms);
      REQUIRE(ring.end_reason.find(i == cut ? "the front is gone: cable cut"
                                            : "ring " + std::to_string(cut) + ": cable cut") == 0);
      ring.steps = nullptr;
      (i == 0 ? processes.group : processes.connections[i - 1]->epochs()).leave(i);
    }
    for (uint32_t i = 0; i < processes.ring_count(); ++i) {
      processes.joins[i]->spawn(
          "join again",
          join_group(i == 0 ? processes.group : processes.connections[i - 1]->epochs(), *toys.rings[i], i));
    }
    processes.run_a_while();
    for (const auto& ring : toys.rings) {
      REQUIRE(ring->steps != nullptr);
      ring->steps = nullptr;
    }
  }
  toys.rings.clear();
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

TEST_CASE("a connection that breaks ends all rings by name") {
  for (uint64_t seed = 0; seed < test::repetitions(1000); ++seed) {
    INFO("seed " << seed);
    cut_a_connection(seed);
  }
}

TEST_CASE("a ring that waits for others can be interrupted") {
  async::VirtualWorld world(1);
  async::Runtime& ring = world.add_thread();
  sched::StepGroup group(2, 24);
  sim::SimulatedSteps elsewhere(world, group, 1, 2, {}, {});
  async::TaskGroup joins(ring);
  std::string failure;
  joins.spawn("join", join_in_vain(elsewhere.epochs(), ring, 1, failure));
  world.run(world.now() + 1s);
  REQUIRE(joins.size() == 1);
  elsewhere.epochs().interrupt(1);
  world.run(world.now() + 1s);
  REQUIRE(joins.size() == 0);
  REQUIRE(failure == "interrupted");
  elsewhere.stop();
  world.run();
}

TEST_CASE("messages about steps that cannot come now are refused") {
  async::VirtualWorld world(1);
  async::Runtime& front = world.add_thread();
  sched::StepGroup group(2, 24);
  sched::StepServer server(front, group, 1, "", [](const sched::StepMessage&) {});
  const auto refused = [](auto& side, const sched::StepMessage& message) {
    try {
      side.handle(message);
    } catch (const ErrorException& refusal) {
      return refusal.error().code == ErrorCode::kData;
    }
    return false;
  };
  REQUIRE(refused(server, sched::EpochLeft{.epoch = 1}));
  REQUIRE(refused(server, sched::EpochBegun{}));
  server.handle(sched::JoinEpoch{});
  REQUIRE(refused(server, sched::JoinEpoch{}));
  async::TaskGroup closing(front);
  closing.spawn("close", server.close("the end"));
  world.run();
  REQUIRE(closing.size() == 0);
  sched::RemoteStepGroup ring(1, 2, {});
  ring.attach("front", [](const sched::StepMessage&) {});
  REQUIRE(refused(ring, sched::JoinEpoch{}));
  REQUIRE(refused(ring, sched::EpochBegun{.epoch = 1, .rings = {{}, {}}}));
  REQUIRE(refused(ring, sched::EpochBegun{.epoch = 1, .rings = {{}}}));
}

TEST_CASE("messages about steps have one encoding and bounds") {
  const std::vector<sched::StepMessage> messages{
      sched::JoinEpoch{.experts = {.endpoints = {{"", 30'123}, {"10.0.0.3", 7}}, .contents = {1, 2, 3, 4}}},
      sched::EpochBegun{.epoch = 7,
                        .rings = {{.endpoints = {{"", 5}}, .contents = {}},
                                  {.endpoints = {{"10.0.0.2", 6}}, .contents = {5, 6, 7, 8}}}},
      sched::StepReached{.epoch = 7, .step = 25}, sched::EpochEnded{.epoch = 7, .ring = 1, .reason = "power lost"},
      sched::EpochLeft{.epoch = 7}};
  for (const sched::StepMessage& message : messages) {
    const auto bytes = sched::encode(message);
    const auto decoded = sched::decode_step_message(bytes);
    REQUIRE(decoded.has_value());
    REQUIRE(decoded->index() == message.index());
    REQUIRE(sched::encode(*decoded) == bytes);
    for (size_t size = 0; size < bytes.size(); ++size) {
      REQUIRE(sched::decode_step_message(std::span(bytes).first(size)).error().code == ErrorCode::kData);
    }
  }
  REQUIRE(sched::decode_step_message(std::array{std::byte{9}}).error().code == ErrorCode::kData);
}
