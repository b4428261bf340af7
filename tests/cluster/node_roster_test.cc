#include "cluster/node_roster.h"

#include <catch2/catch.hpp>

#include "cluster/fake_head.h"
#include "cluster/support.h"

using namespace millrace;
using namespace millrace::cluster;
using namespace std::chrono_literals;
using test::connect_to;
using test::end;
using test::end_of;
using test::FakeHead;
using test::hello_to;
using test::join_as_node;

namespace {

/// Strangers send pings, as a connection does, and never say who they are.
asio::awaitable<void> crowd_the_port(FakeHead& head) {
  std::vector<std::shared_ptr<ControlConnection>> strangers;
  for (size_t i = 0; i < NodeRoster::kMaxPendingConnections; ++i) {
    auto stranger = co_await connect_to(head);
    strangers.push_back(std::move(stranger));
  }
  const auto one_too_many = co_await connect_to(head);
  const std::string turned_away = co_await end_of(one_too_many);
  REQUIRE_THAT(turned_away, Catch::StartsWith("connection lost: "));
  for (const auto& stranger : strangers) {
    const std::string reason = co_await end_of(stranger);
    REQUIRE(reason == "no hello arrived within 2 s");
  }
  const auto node = co_await join_as_node(head);
  co_await end(node);
}

/// What the head answers to this hello.
asio::awaitable<std::string> answer_to(FakeHead& head, Message first) {
  const auto node = co_await connect_to(head);
  node->send(first);
  const std::string reason = co_await end_of(node);
  co_return reason;
}

asio::awaitable<void> expect_answer(FakeHead& head, Message first, std::string wanted) {
  const std::string reason = co_await answer_to(head, first);
  REQUIRE(reason == wanted);
}

asio::awaitable<void> come_before_layers_are_divided(FakeHead& head) {
  const auto node = co_await connect_to(head);
  node->send(hello_to(head));
  node->send(LinkReport{{comm::LinkStats{}}});
  while (head.coordinator().link_stats().empty()) co_await async::sleep_for(head.runtime(), 1ms);
  head.divide();
  const Message assignment = co_await node->receive();
  REQUIRE(std::get<Assignment>(assignment).layers == std::vector<model::LayerRange>{{2, 4}});
  co_await end(node);
}

asio::awaitable<void> come_as_somebody_else(FakeHead& head) {
  const Hello fitting = hello_to(head);
  Hello hello = fitting;
  hello.protocol = 99;
  co_await expect_answer(head, hello, fmt::format("it speaks protocol 99, wanted {}", kProtocolVersion));
  hello = fitting;
  hello.node_count = 3;
  co_await expect_answer(head, hello, "it was started with --nnodes 3, the head with 2");
  for (const uint32_t rank : {0, 2}) {
    hello = fitting;
    hello.node_rank = rank;
    co_await expect_answer(head, hello, fmt::format("its --node-rank is {}, wanted 1 to 1", rank));
  }
  hello = fitting;
  hello.config.high = 0;
  hello.config.low = 10;
  co_await expect_answer(
      head, hello,
      "its model has fingerprint 0000000000000000000000000000000a, the head's " + fitting.config.to_string());
  co_await expect_answer(head, Stop{}, "it did not say hello");
  REQUIRE(head.coordinator().refusals() == 6);
}

/// The second of two with one rank goes, and takes nothing from the first; when that goes, it is welcome.
asio::awaitable<void> come_twice(FakeHead& head) {
  const auto first = co_await join_as_node(head);
  (void)co_await head.coordinator().wait_until_loaded("bf16 cpu avx2", {});
  const std::string reason = co_await answer_to(head, hello_to(head));
  REQUIRE_THAT(reason, Catch::StartsWith("node rank 1 is connected already, from 127.0.0.1:"));
  REQUIRE(head.coordinator().nodes().at(1).compute == "bf16 cpu avx2");
  co_await end(first);
  while (!head.coordinator().nodes().at(1).compute.empty()) co_await async::sleep_for(head.runtime(), 1ms);
  const auto second = co_await join_as_node(head);
  co_await end(second);
}

}  // namespace

TEST_CASE("silent connections are bounded in number and time") {
  FakeHead head;
  head.run(crowd_the_port(head));
}

TEST_CASE("a node that joins before the split gets its layers later") {
  FakeHead head(false);
  head.run(come_before_layers_are_divided(head));
}

TEST_CASE("a node of other protocol or size or rank or model hears why") {
  FakeHead head;
  head.run(come_as_somebody_else(head));
}

TEST_CASE("of two nodes with one rank the second is told who is there") {
  FakeHead head;
  head.run(come_twice(head));
}
