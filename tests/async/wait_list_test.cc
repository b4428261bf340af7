#include "async/wait_list.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "async/real_runtime.h"
#include "async/run.h"
#include "async/task_group.h"

using namespace millrace;
using namespace millrace::async;
using namespace std::chrono_literals;

namespace {

struct Fixture {
  asio::io_context context{1};
  RealRuntime runtime{context};
};

asio::awaitable<void> note_when_notified(WaitList& list, std::vector<int>& order, int id) {
  co_await list.wait();
  order.push_back(id);
}

}  // namespace

TEST_CASE("notify_one wakes waiters in order and notify_all the rest") {
  Fixture f;
  WaitList list(f.runtime);
  std::vector<int> order;
  TaskGroup group(f.runtime);
  auto script = [](Fixture& fixture, WaitList& waiters, std::vector<int>& seen,
                   TaskGroup& tasks) -> asio::awaitable<void> {
    waiters.notify_all();  // without a waiter: nothing is remembered
    for (int i = 0; i < 4; ++i) tasks.spawn("waiter", note_when_notified(waiters, seen, i));
    co_await test::settle(fixture.runtime);
    REQUIRE(seen.empty());
    waiters.notify_one();
    co_await test::settle(fixture.runtime);
    REQUIRE(seen == std::vector<int>{0});
    waiters.notify_all();
    co_await tasks.join();
    REQUIRE(seen == std::vector<int>{0, 1, 2, 3});
  };
  test::run_to_end(f.context, script(f, list, order, group));
}

TEST_CASE("a lone waiter resumes within resume_one and resume_all") {
  Fixture f;
  WaitList list(f.runtime);
  std::vector<int> order;
  TaskGroup group(f.runtime);
  auto script = [](Fixture& fixture, WaitList& waiters, std::vector<int>& seen,
                   TaskGroup& tasks) -> asio::awaitable<void> {
    waiters.resume_one();  // without a waiter: nothing
    waiters.resume_all();
    for (int i = 0; i < 4; ++i) tasks.spawn("waiter", note_when_notified(waiters, seen, i));
    co_await test::settle(fixture.runtime);
    waiters.resume_one();
    REQUIRE(seen == std::vector<int>{0});
    waiters.resume_all();
    REQUIRE_FALSE(waiters.has_waiters());
    REQUIRE(seen == std::vector<int>{0});
    co_await test::settle(fixture.runtime);
    REQUIRE(seen == std::vector<int>{0, 1, 2, 3});
    tasks.spawn("last", note_when_notified(waiters, seen, 4));
    co_await test::settle(fixture.runtime);
    waiters.resume_all();
    REQUIRE(seen.back() == 4);
    co_await tasks.join();
  };
  test::run_to_end(f.context, script(f, list, order, group));
}

TEST_CASE("wait_until tells a notification from a deadline") {
  Fixture f;
  auto script = [](Fixture& fixture) -> asio::awaitable<void> {
    WaitList list(fixture.runtime);
    const bool in_time = co_await list.wait_until(fixture.runtime.now() + 2ms);
    REQUIRE_FALSE(in_time);
    REQUIRE_FALSE(list.has_waiters());
    fixture.runtime.arm(fixture.runtime.now() + 1ms, [&list] { list.notify_one(); });
    const bool notified = co_await list.wait_until(fixture.runtime.now() + 10s);
    REQUIRE(notified);
  };
  test::run_to_end(f.context, script(f));  // returns at once: the 10 s timer is disarmed
}

TEST_CASE("a cancelled wait throws and leaves the list") {
  Fixture f;
  WaitList list(f.runtime);
  std::vector<int> order;
  TaskGroup group(f.runtime);
  auto script = [](Fixture& fixture, WaitList& waiters, std::vector<int>& seen,
                   TaskGroup& tasks) -> asio::awaitable<void> {
    tasks.spawn("waiter", note_when_notified(waiters, seen, 1));
    co_await test::settle(fixture.runtime);
    REQUIRE(waiters.has_waiters());
    tasks.cancel();
    co_await tasks.join();
    REQUIRE_FALSE(waiters.has_waiters());
    REQUIRE(seen.empty());
  };
  test::run_to_end(f.context, script(f, list, order, group));
}

TEST_CASE("destroying a list destroys the coroutines that wait on it") {
  Fixture f;
  auto token = std::make_shared<int>(1);
  std::weak_ptr<int> watch = token;
  auto holder = [](WaitList& list, std::shared_ptr<int> held) -> asio::awaitable<void> {
    co_await list.wait();
    REQUIRE(*held == 2);
  };
  {
    WaitList list(f.runtime);
    asio::co_spawn(f.context, holder(list, std::move(token)), [](std::exception_ptr) {});
    f.context.poll();
    REQUIRE_FALSE(watch.expired());
  }
  f.context.restart();
  f.context.poll();  // Asio unwinds the frames through the executor
  REQUIRE(watch.expired());
}

TEST_CASE("timers fire in order of deadline and disarmed ones never") {
  Fixture f;
  std::vector<int> fired;
  const TimePoint start = f.runtime.now();
  f.runtime.arm(start + 6ms, [&] { fired.push_back(4); });
  f.runtime.arm(start + 2ms, [&] { fired.push_back(1); });
  const TimerId dropped = f.runtime.arm(start + 1ms, [&] { fired.push_back(0); });
  f.runtime.arm(start + 4ms, [&] {
    fired.push_back(2);
    f.runtime.arm(start + 3ms, [&] { fired.push_back(3); });  // which has passed
  });
  f.runtime.disarm(dropped);
  f.context.run();
  REQUIRE(fired == std::vector<int>{1, 2, 3, 4});
}
