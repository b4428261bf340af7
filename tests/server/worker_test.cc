#include "server/worker.h"

#include <boost/system/system_error.hpp>
#include <catch2/catch.hpp>
#include <future>
#include <stdexcept>

#include "async/run.h"
#include "async/task_group.h"

using namespace millrace;
using namespace std::chrono_literals;

namespace {

/// Notes whether the coroutine was cancelled at a wait that follows the work.
asio::awaitable<void> work_and_wait(async::Runtime& runtime, server::Worker& worker, std::function<void()> work,
                                    bool& cancelled) {
  try {
    co_await worker.run(std::move(work));
  } catch (const std::runtime_error& failure) {
    REQUIRE(std::string(failure.what()) == "no memory");
  }
  try {
    co_await async::sleep_for(runtime, 1h);
  } catch (const boost::system::system_error& failure) {
    cancelled = failure.code() == asio::error::operation_aborted;
  }
}

}  // namespace

TEST_CASE("work that throws leaves its coroutine open to cancellation") {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  auto script = [](async::Runtime& rt) -> asio::awaitable<void> {
    server::Worker worker(rt);
    async::TaskGroup tasks(rt);
    bool cancelled = false;
    tasks.spawn("work", work_and_wait(rt, worker, [] { throw std::runtime_error("no memory"); }, cancelled));
    co_await async::sleep_for(rt, 20ms);
    tasks.cancel();
    const bool ended = co_await tasks.join_until(rt.now() + 20s);
    REQUIRE(ended);
    REQUIRE(cancelled);
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("a cancellation during work takes effect once it has ended") {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  auto script = [](async::Runtime& rt) -> asio::awaitable<void> {
    server::Worker worker(rt);
    async::TaskGroup tasks(rt);
    std::promise<void> may_end;
    bool has_ended = false;
    bool cancelled = false;
    const auto work = [&, released = may_end.get_future().share()] {
      released.wait();
      has_ended = true;
    };
    tasks.spawn("work", work_and_wait(rt, worker, work, cancelled));
    co_await test::settle(rt);
    tasks.cancel();
    const bool left_early = co_await tasks.join_until(rt.now() + 20ms);
    REQUIRE_FALSE(left_early);
    may_end.set_value();
    const bool ended = co_await tasks.join_until(rt.now() + 20s);
    REQUIRE(ended);
    REQUIRE(has_ended);
    REQUIRE(cancelled);
  };
  test::run_to_end(context, script(runtime));
}
