#include "async/channel.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "async/run.h"
#include "async/task_group.h"

using namespace millrace;
using namespace millrace::async;
using namespace std::chrono_literals;

namespace {

asio::awaitable<void> produce(Channel<int>& channel, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const bool sent = co_await channel.send(i);
    REQUIRE(sent);
  }
}

asio::awaitable<void> consume(Channel<int>& channel, std::vector<int>& into) {
  for (;;) {
    const auto value = co_await channel.receive();
    if (!value) co_return;
    into.push_back(*value);
  }
}

}  // namespace

TEST_CASE("a channel delivers everything once and in order and bounded") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  auto script = [](Runtime& rt) -> asio::awaitable<void> {
    Channel<int> channel(rt, 3);
    TaskGroup producers(rt);
    TaskGroup consumers(rt);
    std::vector<int> got;
    producers.spawn("producer", produce(channel, 0, 1000));
    co_await test::settle(rt);
    REQUIRE(channel.size() == 3);
    consumers.spawn("consumer", consume(channel, got));
    co_await producers.join();
    channel.close();
    co_await consumers.join();
    std::vector<int> wanted(1000);
    std::iota(wanted.begin(), wanted.end(), 0);
    REQUIRE(got == wanted);
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("several producers and consumers lose and double nothing") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  auto script = [](Runtime& rt) -> asio::awaitable<void> {
    Channel<int> channel(rt, 2);
    TaskGroup producers(rt);
    TaskGroup consumers(rt);
    std::vector<int> got;
    for (int i = 0; i < 4; ++i) producers.spawn("producer", produce(channel, 100 * i, 100 * (i + 1)));
    for (int i = 0; i < 3; ++i) consumers.spawn("consumer", consume(channel, got));
    co_await producers.join();
    channel.close();
    co_await consumers.join();
    std::sort(got.begin(), got.end());
    std::vector<int> wanted(400);
    std::iota(wanted.begin(), wanted.end(), 0);
    REQUIRE(got == wanted);
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("close keeps the buffer and refuses more and wakes a sender") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  auto blocked_send = [](Channel<int>& channel, bool& sent, bool& returned) -> asio::awaitable<void> {
    sent = co_await channel.send(2);
    returned = true;
  };
  auto script = [&blocked_send](Runtime& rt) -> asio::awaitable<void> {
    Channel<int> channel(rt, 1);
    REQUIRE(channel.try_send(1));
    REQUIRE_FALSE(channel.try_send(9));
    bool sent = true;
    bool returned = false;
    TaskGroup group(rt);
    group.spawn("sender", blocked_send(channel, sent, returned));
    co_await test::settle(rt);
    REQUIRE_FALSE(returned);
    channel.close();
    co_await group.join();
    REQUIRE(returned);
    REQUIRE_FALSE(sent);
    const auto first = co_await channel.receive();
    REQUIRE(first == 1);
    const auto end = co_await channel.receive();
    REQUIRE_FALSE(end.has_value());
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("a cancelled receive takes nothing from the channel") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  auto script = [](Runtime& rt) -> asio::awaitable<void> {
    for (int round = 0; round < 50; ++round) {
      Channel<int> channel(rt, 4);
      std::vector<int> got;
      TaskGroup group(rt);
      group.spawn("consumer", consume(channel, got));
      co_await sleep_for(rt, 100us);
      group.cancel();
      REQUIRE(channel.try_send(round));
      co_await group.join();
      REQUIRE(channel.try_receive() == round);
      REQUIRE(got.empty());
    }
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("a value is handed over within the call and the bound") {
  asio::io_context context(1);
  RealRuntime runtime(context);
  auto script = [](Runtime& rt) -> asio::awaitable<void> {
    Channel<int> channel(rt, 2);
    REQUIRE(channel.hand_over(1));
    REQUIRE(channel.hand_over(2));
    REQUIRE_FALSE(channel.hand_over(3));
    std::vector<int> got;
    TaskGroup group(rt);
    group.spawn("consumer", consume(channel, got));
    co_await test::settle(rt);
    REQUIRE(got == std::vector<int>{1, 2});
    REQUIRE(channel.hand_over(4));
    REQUIRE(got == std::vector<int>{1, 2, 4});
    channel.close();
    co_await group.join();
    REQUIRE_FALSE(channel.hand_over(5));
  };
  test::run_to_end(context, script(runtime));
}
