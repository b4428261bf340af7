#include "sched/stage/run_watchdog.h"

#include <catch2/catch.hpp>

#include "async/virtual_runtime.h"

using namespace millrace;
using namespace millrace::sched;
using namespace std::chrono_literals;

namespace {

struct World {
  explicit World(async::Duration limit)
      : watchdog(runtime, "stage 1", limit, [this](const std::string& reason) { late.push_back(reason); }) {}
  void begin(uint64_t plan, std::shared_ptr<comm::Arrival> inputs = nullptr) {
    watchdog.begin({.plan = PlanId(plan),
                    .arrived = virtual_world.now(),
                    .begun = virtual_world.now() + 1s,
                    .inputs_event = std::move(inputs)});
  }
  void pass(async::Duration time) { virtual_world.run(virtual_world.now() + time); }

  async::VirtualWorld virtual_world{1};
  async::Runtime& runtime = virtual_world.add_thread();
  std::vector<std::string> late;
  RunWatchdog watchdog;
};

}  // namespace

TEST_CASE("a run that is still going at the limit is reported once") {
  World world(10s);
  world.begin(5);
  world.pass(9999ms);
  REQUIRE(world.late.empty());
  world.pass(100s);
  REQUIRE(world.late == std::vector<std::string>{"stage 1 has been running plan 5 for 9.0 s, and it came 10.0 s ago "
                                                 "(--watchdog-timeout)"});
}

TEST_CASE("one timer watches runs that follow each other") {
  World world(10s);
  for (uint64_t plan = 0; plan < 20; ++plan) {
    world.begin(plan);
    world.pass(6s);
    world.watchdog.end();
  }
  REQUIRE(world.late.empty());
  world.begin(20);
  world.pass(20s);
  REQUIRE(world.late.size() == 1);
  REQUIRE_THAT(world.late.front(), Catch::Contains("plan 20 "));
}

TEST_CASE("a run that waits for activations is not late") {
  World waiting(10s);
  waiting.begin(1, std::make_shared<comm::Arrival>(waiting.runtime));
  waiting.pass(100s);
  REQUIRE(waiting.late.empty());
  World unlimited(0s);
  unlimited.begin(1);
  unlimited.pass(1h);
  REQUIRE(unlimited.late.empty());
}
