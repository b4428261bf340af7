#include "cluster/coordinator.h"

#include <catch2/catch.hpp>

#include "cluster/fake_head.h"
#include "cluster/support.h"

using namespace millrace;
using namespace millrace::cluster;
using namespace std::chrono_literals;
using test::end;
using test::FakeHead;
using test::join_as_node;
using test::kPages;

namespace {

/// Why build() failed; the epoch is dissolved as Ring does it.
asio::awaitable<std::string> failure_to_form(FakeHead& head, RingEpoch epoch) {
  std::string failure;
  try {
    (void)co_await head.coordinator().build(epoch);
  } catch (const ErrorException& error) {
    failure = error.error().message;
  }
  co_await head.coordinator().tear_down(epoch, failure);
  co_return failure;
}

asio::awaitable<void> leave_when_asked_to_join(std::shared_ptr<ControlConnection> node) {
  const Message form = co_await node->receive();
  REQUIRE(std::get<JoinRing>(form).pages.device == kPages);
  REQUIRE(std::get<JoinRing>(form).fingerprint.size() == 32);
  node->close("out of power");
  co_await node->join();
}

asio::awaitable<void> stop_when_asked_to_join(std::shared_ptr<ControlConnection> node) {
  const Message form = co_await node->receive();
  node->send(Stopped{std::get<JoinRing>(form).epoch, "cannot link"});
}

asio::awaitable<void> lose_nodes_while_links_form(FakeHead& head) {
  async::TaskGroup nodes(head.runtime());
  auto node = co_await join_as_node(head);
  const auto ring = co_await head.coordinator().wait_until_loaded("bf16 cpu avx512", {"own weights"});
  REQUIRE(ring.page_capacity == kPages);
  REQUIRE(ring.fingerprint == model::fingerprint(std::vector<std::string>{"own weights", "weights"}).to_string());
  const auto compute = [&head](size_t rank) { return head.coordinator().nodes().at(rank).compute; };
  REQUIRE(compute(0) == "bf16 cpu avx512");
  REQUIRE(compute(1) == "bf16 cpu avx2");
  REQUIRE(head.coordinator().nodes()[1].first_stage == 1);
  nodes.spawn("leave", leave_when_asked_to_join(node));
  const std::string gone = co_await failure_to_form(head, RingEpoch(1));
  REQUIRE(gone == "node 1 of 2 (stages 1 to 1): out of power");
  REQUIRE(compute(1).empty());
  co_await nodes.join();

  node = co_await join_as_node(head);
  nodes.spawn("stop", stop_when_asked_to_join(node));
  const std::string stopped = co_await failure_to_form(head, RingEpoch(2));
  REQUIRE(stopped == "node 1 of 2 (stages 1 to 1): cannot link");
  co_await nodes.join();
  co_await end(node);
}

asio::awaitable<void> interrupt_later(FakeHead& head) {
  while (head.awaited().empty()) co_await async::sleep_for(head.runtime(), 1ms);
  REQUIRE(head.awaited() == "forming: waiting for node 1 of 2 (stages 1 to 1)");
  head.coordinator().interrupt();
}

asio::awaitable<void> interrupt_a_wait(FakeHead& head) {
  async::TaskGroup tasks(head.runtime());
  tasks.spawn("interrupt", interrupt_later(head));
  const std::string failure = co_await failure_to_form(head, RingEpoch(1));
  REQUIRE(failure == "the head is stopping");
  co_await tasks.join();
}

}  // namespace

TEST_CASE("an epoch is given up as soon as one of its nodes is gone") {
  FakeHead head;
  head.run(lose_nodes_while_links_form(head));
}

TEST_CASE("a wait for nodes names the missing and can be interrupted") {
  FakeHead head;
  head.run(interrupt_a_wait(head));
}
