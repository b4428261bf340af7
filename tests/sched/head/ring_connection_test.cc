#include "sched/head/ring_connection.h"

#include <catch2/catch.hpp>

#include "async/task_group.h"
#include "async/virtual_runtime.h"
#include "comm/in_process_link.h"

using namespace millrace;
using namespace millrace::sched;
using namespace std::chrono_literals;

namespace {

async::TimePoint at(async::Duration since_start) {
  return async::TimePoint(since_start);
}

constexpr RingTimers kTimers{.heartbeat = 100ms, .watchdog = 5s};

struct World {
  async::VirtualWorld virtual_world{1};
  async::Runtime& runtime = virtual_world.add_thread();
  comm::Link link = comm::make_in_process_link(runtime, runtime, 8);
  RingConnection ring{RingEpoch(3), kTimers, std::move(link.sender), at(1s)};
  async::TaskGroup tasks{runtime};
  std::vector<Plan> received;

  void send(async::TimePoint now) {
    Plan plan;
    ring.send(ring.encode(plan), now);
  }
};

asio::awaitable<void> receive_plans(World& world) {
  for (;;) {
    const auto message = co_await comm::receive_until_closed(*world.link.receiver, comm::MessageKind::kPlan);
    if (!message) co_return;
    world.received.push_back(Plan::decode(message->payload.bytes()).value());
    CHECK(message->plan == world.received.back().id);
  }
}

}  // namespace

TEST_CASE("plans carry the epoch and consecutive ids") {
  World world;
  for (int i = 0; i < 3; ++i) world.send(at(1s));
  world.ring.close("the end");
  world.tasks.spawn("stage", receive_plans(world));
  world.virtual_world.run();
  REQUIRE(world.received.size() == 3);
  for (uint64_t id = 0; id < 3; ++id) {
    REQUIRE(world.received[id].id == PlanId(id));
    REQUIRE(world.received[id].epoch == RingEpoch(3));
  }
}

TEST_CASE("deadlines follow the heartbeat or the oldest plan") {
  World world;
  RingConnection& ring = world.ring;
  REQUIRE(ring.next_deadline() == at(1100ms));
  REQUIRE_FALSE(ring.heartbeat_due(at(1099ms)));
  REQUIRE(ring.heartbeat_due(at(1100ms)));
  REQUIRE_FALSE(ring.overdue(at(100s)));

  world.send(at(2s));
  world.send(at(3s));
  REQUIRE_FALSE(ring.heartbeat_due(at(100s)));
  REQUIRE(ring.next_deadline() == at(7s));
  REQUIRE_FALSE(ring.overdue(at(6999ms)));
  REQUIRE(ring.overdue(at(7s)));
  REQUIRE(ring.oldest_plan() == PlanId(0));
  REQUIRE(ring.oldest_age(at(7s)) == 5s);

  ring.output_arrived(at(4s));
  REQUIRE(ring.oldest_plan() == PlanId(1));
  REQUIRE(ring.next_deadline() == at(8s));
  ring.output_arrived(at(5s));
  REQUIRE(ring.next_deadline() == at(5100ms));
}
