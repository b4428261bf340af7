#include "sched/head/output_delivery.h"

#include <catch2/catch.hpp>

#include "async/virtual_runtime.h"
#include "sched/plan/request.h"

using namespace millrace;
using namespace millrace::sched;
using namespace std::chrono_literals;

namespace {

struct World {
  explicit World(bool audit = false) : delivery(intake, audit) {}
  EventMailbox add(uint64_t id, async::TimePoint submitted, std::optional<uint32_t> ring = {},
                   bool reports_start = false) {
    EventMailbox events(runtime, 8);
    GenerateRequest request;
    request.ring = ring;
    request.reports_start = reports_start;
    delivery.add({.id = SequenceId(id), .request = std::move(request), .events = events, .submitted = submitted});
    return events;
  }
  async::VirtualWorld virtual_world{1};
  async::Runtime& runtime = virtual_world.add_thread();
  RequestIntake intake{runtime, 8, false};
  OutputDelivery delivery;
};

async::TimePoint at(async::Duration since_start) {
  return async::TimePoint(since_start);
}

SequenceUpdate tokens_of(uint64_t id, std::vector<TokenId> tokens) {
  SequenceUpdate update{.id = SequenceId(id), .event = {}};
  update.event.tokens = std::move(tokens);
  return update;
}

}  // namespace

TEST_CASE("events carry queue and prefill times") {
  World world;
  const EventMailbox events = world.add(1, at(1ms));
  world.delivery.planned(SequenceId(1), at(3ms));
  world.delivery.planned(SequenceId(1), at(4ms));  // a later plan changes nothing
  world.delivery.deliver(tokens_of(1, {5}), at(10ms));
  world.delivery.deliver(tokens_of(1, {6}), at(20ms));
  for (const TokenId token : {5, 6}) {
    const auto event = events.try_receive();
    REQUIRE(event.has_value());
    REQUIRE(event->tokens == std::vector<TokenId>{token});
    REQUIRE(event->timings.queued_us == 2000);
    REQUIRE(event->timings.prefill_us == 7000);
  }
}

TEST_CASE("the first plan of a request is reported once if asked for") {
  World world;
  const EventMailbox silent = world.add(1, at(0ms));
  const EventMailbox reported = world.add(2, at(0ms), {}, true);
  for (const uint64_t id : {1, 2}) {
    world.delivery.planned(SequenceId(id), at(1ms));
    world.delivery.planned(SequenceId(id), at(2ms));
  }
  REQUIRE_FALSE(silent.try_receive());
  const auto start = reported.try_receive();
  REQUIRE(start.has_value());
  REQUIRE(start->tokens.empty());
  REQUIRE_FALSE(start->last());
  REQUIRE_FALSE(reported.try_receive());
}

TEST_CASE("the last event removes the client and frees its id") {
  World world;
  const EventMailbox first = world.add(1, at(0ms));
  const EventMailbox gone = world.add(2, at(0ms));
  gone.close();
  world.delivery.fail({SequenceId(1), SequenceId(2)}, {ErrorCode::kUnavailable, "no ring"}, at(1ms));
  REQUIRE(world.delivery.size() == 0);
  REQUIRE(first.try_receive()->error->message == "no ring");
  world.delivery.abort({SequenceId(1)}, at(2ms));  // an unknown sequence is ignored without audit
  REQUIRE_FALSE(first.try_receive().has_value());
}

TEST_CASE("each time limit has its own clock") {
  World world;
  (void)world.add(3, at(0ms));
  (void)world.add(2, at(0ms));
  (void)world.add(1, at(90ms));
  world.delivery.planned(SequenceId(2), at(50ms));
  const RequestTimeouts timeouts{.queue = 100ms, .prefetch = 20ms, .run = 60ms};
  const auto early = world.delivery.expired(timeouts, at(100ms));
  REQUIRE(early.queued.empty());
  REQUIRE(early.prefetching == std::vector{SequenceId(2), SequenceId(3)});
  REQUIRE(early.running.empty());
  const auto late = world.delivery.expired(timeouts, at(111ms));
  REQUIRE(late.queued == std::vector{SequenceId(3)});
  REQUIRE(late.prefetching == std::vector{SequenceId(1), SequenceId(2), SequenceId(3)});
  REQUIRE(late.running == std::vector{SequenceId(2)});
  const auto unlimited = world.delivery.expired({}, at(1h));
  REQUIRE((unlimited.queued.empty() && unlimited.prefetching.empty() && unlimited.running.empty()));
  REQUIRE(world.delivery.ids() == std::vector{SequenceId(1), SequenceId(2), SequenceId(3)});
}

TEST_CASE("only requests that have not run and name no ring are movable") {
  World world;
  const EventMailbox waiting = world.add(3, at(0ms));
  (void)world.add(1, at(0ms));
  (void)world.add(2, at(0ms), 0);
  (void)world.add(4, at(0ms));
  world.delivery.planned(SequenceId(4), at(1ms));
  REQUIRE(world.delivery.movable() == std::vector{SequenceId(1), SequenceId(3)});
  world.delivery.give_back({SequenceId(3)}, {ErrorCode::kUnavailable, "draining"}, at(2ms));
  const auto event = waiting.try_receive();
  REQUIRE(event->is_returned);
  REQUIRE(event->last());
  REQUIRE(event->error->message == "draining");
  REQUIRE(world.delivery.movable() == std::vector{SequenceId(1)});
}
