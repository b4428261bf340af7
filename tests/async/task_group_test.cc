#include "async/task_group.h"

#include <catch2/catch.hpp>
#include <stdexcept>
#include <vector>

#include "async/real_runtime.h"
#include "async/run.h"

using namespace millrace;
using namespace millrace::async;
using namespace std::chrono_literals;

namespace {

asio::awaitable<void> sleep_then_note(Runtime& runtime, Duration duration, int& done) {
  co_await sleep_for(runtime, duration);
  ++done;
}

asio::awaitable<void> fail() {
  throw std::runtime_error("on purpose");
  co_return;
}

}  // namespace

TEST_CASE("join awaits all tasks and cancel ends them and close refuses") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  auto script = [](Runtime& rt) -> asio::awaitable<void> {
    TaskGroup group(rt);
    int done = 0;
    for (int i = 0; i < 10; ++i) group.spawn("sleeper", sleep_then_note(rt, std::chrono::milliseconds(i), done));
    co_await group.join();
    REQUIRE(done == 10);
    for (int i = 0; i < 10; ++i) group.spawn("sleeper", sleep_then_note(rt, 1h, done));
    const bool all = co_await group.join_until(rt.now() + 2ms);
    REQUIRE_FALSE(all);
    group.cancel();
    co_await group.join();
    REQUIRE(done == 10);
    group.close();
    REQUIRE_FALSE(group.spawn("late", sleep_then_note(rt, 0ms, done)));
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("an exception of a task reaches the handler") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  std::vector<std::string> failed;
  auto script = [](Runtime& rt, std::vector<std::string>& names) -> asio::awaitable<void> {
    TaskGroup group(rt, [&names](const std::string& task, std::exception_ptr error) {
      names.push_back(task + ": " + describe(error));
    });
    int done = 0;
    group.spawn("faulty", fail());
    group.spawn("sleeper", sleep_then_note(rt, 1h, done));
    co_await test::settle(rt);
    group.cancel();
    co_await group.join();
  };
  test::run_to_end(context, script(runtime, failed));
  REQUIRE(failed == std::vector<std::string>{"faulty: on purpose"});
}

TEST_CASE("an IoThread runs work until it is joined") {
  std::atomic<int> ran = 0;
  {
    IoThread thread("worker");
    for (int i = 0; i < 100; ++i) asio::post(thread.context(), [&ran] { ++ran; });
  }
  REQUIRE(ran == 100);
}
