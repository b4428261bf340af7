#include "sched/head/flush_queue.h"

#include <catch2/catch.hpp>

#include "async/virtual_runtime.h"

using namespace millrace;
using namespace millrace::sched;
using namespace std::chrono_literals;

namespace {

async::TimePoint at(async::Duration since_start) {
  return async::TimePoint(since_start);
}

struct World {
  FlushReply ask(async::Duration deadline) {
    FlushReply reply(runtime, 1);
    flushes.add({.deadline = at(deadline), .reply = reply});
    return reply;
  }
  void add_request() {
    GenerateRequest request;
    request.prompt = {1, 2, 3};
    scheduler.add(SequenceId(1), std::move(request));
  }
  async::VirtualWorld virtual_world{1};
  async::Runtime& runtime = virtual_world.add_thread();
  Scheduler scheduler{
      {.page_size = 4, .page_count = 8, .max_running = 2, .chunked_prefill_size = 16, .context_length = 32}};
  FlushQueue flushes;
};

}  // namespace

TEST_CASE("a flush is done at once when no request is there") {
  World world;
  const FlushReply reply = world.ask(0s);
  world.flushes.settle(world.scheduler, at(0s));
  REQUIRE(reply.try_receive()->has_value());
  REQUIRE(world.flushes.empty());
}

TEST_CASE("a flush waits for requests until its deadline") {
  World world;
  world.add_request();
  const FlushReply early = world.ask(1s);
  const FlushReply late = world.ask(9s);
  world.flushes.settle(world.scheduler, at(999ms));
  REQUIRE_FALSE(early.try_receive().has_value());
  world.flushes.settle(world.scheduler, at(1s));
  REQUIRE(early.try_receive()->error().code == ErrorCode::kConflict);
  REQUIRE_FALSE(late.try_receive().has_value());
  REQUIRE(world.scheduler.abort(SequenceId(1)));
  world.flushes.settle(world.scheduler, at(2s));
  REQUIRE(late.try_receive()->has_value());
}

TEST_CASE("abandoned and cancelled flushes get no reply") {
  World world;
  world.add_request();
  world.ask(9s).close();
  world.flushes.settle(world.scheduler, at(0s));
  REQUIRE(world.flushes.empty());
  const FlushReply reply = world.ask(9s);
  world.flushes.cancel();
  REQUIRE(reply.closed());
  REQUIRE_FALSE(reply.try_receive().has_value());
  REQUIRE(world.flushes.empty());
}
