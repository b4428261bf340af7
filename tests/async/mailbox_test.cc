#include "async/mailbox.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "async/event.h"
#include "async/run.h"
#include "async/task_group.h"

using namespace millrace;
using namespace millrace::async;
using namespace std::chrono_literals;

TEST_CASE("a mailbox keeps the order of each sender over many threads") {
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  asio::io_context context(1);
  RealRuntime runtime(context);
  Mailbox<std::pair<int, int>> mailbox(runtime, 64);
  std::vector<std::thread> senders;
  for (int id = 0; id < kThreads; ++id) {
    senders.emplace_back([mailbox, id] {
      for (int i = 0; i < kEach; ++i) {
        while (!mailbox.try_push({id, i})) std::this_thread::yield();
      }
    });
  }
  auto script = [](Mailbox<std::pair<int, int>> inbox) -> asio::awaitable<void> {
    std::vector<int> next(kThreads, 0);
    for (int i = 0; i < kThreads * kEach; ++i) {
      const auto value = co_await inbox.receive();
      REQUIRE(value.has_value());
      REQUIRE(value->second == next[static_cast<size_t>(value->first)]++);
    }
    REQUIRE_FALSE(inbox.try_receive().has_value());
  };
  test::run_to_end(context, script(mailbox));
  for (auto& sender : senders) sender.join();
}

TEST_CASE("a closed mailbox drains and then ends and refuses more") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  Mailbox<int> mailbox(runtime, 2);
  REQUIRE(mailbox.try_push(1));
  REQUIRE(mailbox.try_push(2));
  REQUIRE_FALSE(mailbox.try_push(3));
  mailbox.close();
  auto script = [](Mailbox<int> inbox) -> asio::awaitable<void> {
    const auto first = co_await inbox.receive();
    const auto second = co_await inbox.receive();
    const auto end = co_await inbox.receive();
    REQUIRE(first == 1);
    REQUIRE(second == 2);
    REQUIRE_FALSE(end.has_value());
  };
  test::run_to_end(context, script(mailbox));
  REQUIRE_FALSE(mailbox.try_push(4));
}

TEST_CASE("a closed mailbox no longer wakes its receiver") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  const Mailbox<int> mailbox(runtime, 2);
  mailbox.close();
  REQUIRE(context.poll() > 0);
  context.restart();
  mailbox.close();
  REQUIRE_FALSE(mailbox.try_push(1));
  REQUIRE(context.poll() == 0);
}

TEST_CASE("an event of another thread resumes its waiter or fails it") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  auto script = [](Runtime& rt) -> asio::awaitable<void> {
    Event good(rt);
    std::thread setter([good] {
      std::this_thread::sleep_for(1ms);
      good.set();
      good.set(std::make_exception_ptr(std::runtime_error("late")));
    });
    co_await good.wait();
    setter.join();
    co_await good.wait();
    Event bad(rt);
    bad.set(std::make_exception_ptr(std::runtime_error("device lost")));
    bool caught = false;
    try {
      co_await bad.wait();
    } catch (const std::runtime_error& failure) {
      caught = std::string(failure.what()) == "device lost";
    }
    REQUIRE(caught);
  };
  test::run_to_end(context, script(runtime));
}
