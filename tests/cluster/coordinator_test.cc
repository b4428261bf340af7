#include "cluster/coordinator.h"

#include <catch2/catch.hpp>

#include "cluster/fake_head.h"
#include "cluster/support.h"
#include "support/captured_log.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::cluster;
using namespace std::chrono_literals;
using test::end;
using test::FakeHead;
using test::join_as_node;
using test::kPages;
using test::loaded_node;

namespace {

/// What the pages of the head's node follow from.
model::PageContents own_contents() {
  return {.ranks = {"own weights"}, .experts = {}};
}

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

/// Plays a node until it is asked to join: it measures as much memory each time as it has.
asio::awaitable<JoinRing> measure_until_asked_to_join(std::shared_ptr<ControlConnection> node, Loaded has,
                                                      int& measured) {
  for (;;) {
    const Message message = co_await node->receive();
    if (const auto* join = std::get_if<JoinRing>(&message)) co_return *join;
    REQUIRE(std::holds_alternative<Measure>(message));
    ++measured;
    node->send(has);
  }
}

asio::awaitable<void> leave_when_asked_to_join(std::shared_ptr<ControlConnection> node) {
  int measured = 0;
  const JoinRing join = co_await measure_until_asked_to_join(node, loaded_node(), measured);
  REQUIRE(measured == 0);
  REQUIRE(join.pages.device == kPages);
  REQUIRE(join.fingerprint.size() == 32);
  node->close("out of power");
  co_await node->join();
}

asio::awaitable<void> stop_when_asked_to_join(std::shared_ptr<ControlConnection> node) {
  int measured = 0;
  const JoinRing join = co_await measure_until_asked_to_join(node, loaded_node(), measured);
  node->send(Stopped{join.epoch, "cannot link"});
}

asio::awaitable<void> lose_nodes_while_links_form(FakeHead& head) {
  async::TaskGroup nodes(head.runtime());
  auto node = co_await join_as_node(head);
  const auto ring = co_await head.coordinator().wait_until_loaded("bf16 cpu avx512", own_contents());
  REQUIRE(ring.page_capacity == kPages);
  REQUIRE(ring.sequence_capacity == kPages);
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

/// What a node was asked that came with `loaded`.
struct Visit {
  JoinRing join;
  int measured = 0;
  std::string failure;  ///< of the epoch, which it leaves when it is asked to join
};

asio::awaitable<void> visit_and_leave(std::shared_ptr<ControlConnection> node, Loaded has, Visit& visit) {
  visit.join = co_await measure_until_asked_to_join(node, std::move(has), visit.measured);
  node->close("out of power");
  co_await node->join();
}

asio::awaitable<Visit> visit(FakeHead& head, RingEpoch epoch, Loaded loaded, Loaded has) {
  async::TaskGroup nodes(head.runtime());
  Visit found;
  const auto node = co_await join_as_node(head, std::move(loaded));
  if (epoch == RingEpoch(1)) (void)co_await head.coordinator().wait_until_loaded("bf16 cpu avx2", own_contents());
  nodes.spawn("visit", visit_and_leave(node, std::move(has), found));
  found.failure = co_await failure_to_form(head, epoch);
  co_await nodes.join();
  REQUIRE(found.failure == "node 1 of 2 (stages 1 to 1): out of power");
  REQUIRE(found.join.epoch == epoch);
  co_return found;
}

asio::awaitable<void> come_back_with_other_memory(FakeHead& head) {
  const Visit first = co_await visit(head, RingEpoch(1), loaded_node(), loaded_node());
  REQUIRE(first.join.pages.device == kPages);
  REQUIRE(head.made().empty());
  // What it has now counts, not what it had when it had loaded. Each node measures after all have freed their pools.
  const Visit less = co_await visit(head, RingEpoch(2), loaded_node(kPages - 2), loaded_node(kPages - 3));
  REQUIRE(less.join.pages.device == kPages - 3);
  REQUIRE(less.measured == 2);
  const Visit more = co_await visit(head, RingEpoch(3), loaded_node(5 * kPages), loaded_node(5 * kPages));
  REQUIRE(more.join.pages.device == kPages);
  const std::vector<cache::PoolSizes> made{{kPages - 3, 0}, {kPages, 0}};
  REQUIRE(head.made() == made);
  REQUIRE(more.join.fingerprint == first.join.fingerprint);
}

asio::awaitable<void> come_back_with_other_weights(FakeHead& head) {
  const Visit first = co_await visit(head, RingEpoch(1), loaded_node(), loaded_node());
  const Loaded tuned = loaded_node(kPages, "fine-tuned weights");
  const Visit second = co_await visit(head, RingEpoch(2), tuned, tuned);
  REQUIRE(second.join.fingerprint ==
          model::fingerprint(std::vector<std::string>{"own weights", "fine-tuned weights"}).to_string());
  REQUIRE(second.join.fingerprint != first.join.fingerprint);
}

asio::awaitable<void> come_back_with_its_pools(FakeHead& head) {
  (void)co_await visit(head, RingEpoch(1), loaded_node(), loaded_node());
  Loaded kept = loaded_node();
  kept.pools.device = kPages;
  const Visit second = co_await visit(head, RingEpoch(2), kept, kept);
  REQUIRE(second.measured == 0);
  REQUIRE(head.made().empty());
  kept.pools.device = kPages - 1;  // of another ring
  const Visit third = co_await visit(head, RingEpoch(3), kept, loaded_node());
  REQUIRE(third.measured == 2);
}

/// Answers what it is asked until its connection ends.
asio::awaitable<void> measure_without_end(std::shared_ptr<ControlConnection> node, Loaded& has) {
  try {
    for (;;) {
      const Message message = co_await node->receive();
      if (std::holds_alternative<Measure>(message)) node->send(has);
      if (const auto* join = std::get_if<JoinRing>(&message)) node->send(Stopped{join->epoch, "joined"});
    }
  } catch (const ErrorException& ended) {
    REQUIRE(ended.error().code == ErrorCode::kUnavailable);
  }
}

asio::awaitable<void> lack_memory_for_a_while(FakeHead& head) {
  (void)co_await visit(head, RingEpoch(1), loaded_node(), loaded_node());
  async::TaskGroup nodes(head.runtime());
  Loaded has = loaded_node(0);
  const auto node = co_await join_as_node(head, has);
  nodes.spawn("node", measure_without_end(node, has));
  const std::string none = co_await failure_to_form(head, RingEpoch(2));
  REQUIRE(none == "no room for a page");
  has = loaded_node(4);
  head.fail("memory for host pages");
  const std::string own = co_await failure_to_form(head, RingEpoch(3));
  REQUIRE(own == "memory for host pages");
  head.fail("");
  const std::string joined = co_await failure_to_form(head, RingEpoch(4));
  REQUIRE(joined == "node 1 of 2 (stages 1 to 1): joined");
  const std::vector<cache::PoolSizes> made{{4, 0}};
  REQUIRE(head.made() == made);
  co_await end(node);
  co_await nodes.join();
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

/// Rings with shared experts: the nodes' addresses go out and come back in, and a node that goes in between is noticed.
asio::awaitable<void> share_experts_with_another_ring(FakeHead& head) {
  comm::EpochExperts exchange(
      {.shape = {.ring_count = 2, .rank_count = 1, .stage_count = 2}, .ring = 0, .silence = 10s});
  const uint16_t port = exchange.listen(head.runtime()).value();
  Loaded loaded = loaded_node();
  loaded.expert_port = 77;
  auto node = co_await join_as_node(head, loaded);
  (void)co_await head.coordinator().wait_until_loaded("bf16 cpu avx2", own_contents());
  co_await head.coordinator().gather();
  // The node is on the head's host, so other hosts know it by the head's address.
  const comm::RankEndpoints own = head.coordinator().expert_endpoints(port);
  REQUIRE(own == comm::RankEndpoints{{"", port}, {"", 77}});
  const comm::RankEndpoints other{{"10.0.0.2", 5}, {"127.0.0.1", 6}};
  REQUIRE(head.coordinator().contents()->common ==
          model::fingerprint(std::vector<std::string>{"own weights", "weights"}));
  head.coordinator().share_experts({.number = 9, .endpoints = {own, other}}, exchange, "names of two rings");
  Visit found;
  async::TaskGroup nodes(head.runtime());
  nodes.spawn("visit", visit_and_leave(node, loaded, found));
  const std::string gone = co_await failure_to_form(head, RingEpoch(1));
  REQUIRE(gone == "node 1 of 2 (stages 1 to 1): out of power");
  co_await nodes.join();
  REQUIRE(found.join.experts.number == 9);
  REQUIRE(found.join.fingerprint == "names of two rings");
  REQUIRE(found.join.experts.endpoints == std::vector<comm::RankEndpoints>{own, {{"10.0.0.2", 5}, {"", 6}}});

  loaded.pools.device = kPages;  // a process that has kept them
  node = co_await join_as_node(head, loaded);
  co_await head.coordinator().gather();
  head.coordinator().share_experts({.number = 10, .endpoints = {own, other}}, exchange, "names of two rings");
  co_await end(node);
  while (!head.coordinator().nodes()[1].compute.empty()) co_await async::sleep_for(head.runtime(), 1ms);
  const std::string lost = co_await failure_to_form(head, RingEpoch(2));
  REQUIRE_THAT(lost, test::Mentions("node 1 of 2 (stages 1 to 1)", "before the common epoch"));

  loaded.expert_port = 78;
  node = co_await join_as_node(head, loaded);
  co_await head.coordinator().gather();
  head.coordinator().share_experts({.number = 11, .endpoints = {own, other}}, exchange, "names of two rings");
  const std::string anew = co_await failure_to_form(head, RingEpoch(3));
  REQUIRE_THAT(anew, test::Mentions("a node has come anew"));
  REQUIRE(head.made().size() == 1);  // the stages, with the names of pages of the first epoch
  co_await end(node);
  co_await exchange.close();
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

TEST_CASE("the pools follow the memory with which a node returns") {
  FakeHead head;
  head.run(come_back_with_other_memory(head));
}

TEST_CASE("a node that returns with other weights gets other stores") {
  const test::CapturedLog log;
  FakeHead head;
  head.run(come_back_with_other_weights(head));
  REQUIRE(log.count("pages stored so far are not used") == 1);
}

TEST_CASE("a process that returns with its pools keeps them") {
  FakeHead head;
  head.run(come_back_with_its_pools(head));
}

TEST_CASE("memory is measured at each attempt until it suffices") {
  FakeHead head;
  head.run(lack_memory_for_a_while(head));
}

TEST_CASE("nodes are connected with those of rings that share experts") {
  FakeHead head;
  head.run(share_experts_with_another_ring(head));
}
