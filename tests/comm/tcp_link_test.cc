#include <algorithm>

#include "comm/tcp_support.h"

using namespace millrace;
using namespace millrace::comm;
using namespace std::chrono_literals;
using test::bytes_of;
using test::commit_into;
using test::failure_of;
using test::kEpoch;
using test::numbered_bytes;
using test::patient_options;
using test::receive_activations;
using test::same_bytes;
using test::TcpWorld;
using test::text_of;

namespace {

asio::awaitable<void> keep_order(TcpWorld& world) {
  Link link = co_await world.make_link(patient_options());
  link.sender->send(MessageKind::kActivations, kEpoch, PlanId(1), bytes_of("early"));
  link.sender->send(MessageKind::kPlan, kEpoch, PlanId(1), bytes_of("one"));
  link.sender->send(MessageKind::kOutput, kEpoch, PlanId(9), bytes_of("out"));
  link.sender->send(MessageKind::kAcks, kEpoch, PlanId(0), bytes_of("acks"));
  link.sender->send(MessageKind::kPlan, kEpoch, PlanId(2), {});
  const Message acks = co_await link.receiver->receive(MessageKind::kAcks);
  const Message one = co_await link.receiver->receive(MessageKind::kPlan);
  const Message two = co_await link.receiver->receive(MessageKind::kPlan);
  const Message output = co_await link.receiver->receive(MessageKind::kOutput);
  const auto early = co_await receive_activations(*link.receiver, PlanId(1), 5);
  REQUIRE(text_of(acks) == "acks");
  REQUIRE(text_of(one) == "one");
  REQUIRE(two.plan == PlanId(2));
  REQUIRE(two.payload.bytes().empty());
  REQUIRE(output.plan == PlanId(9));
  REQUIRE(output.epoch == kEpoch);
  REQUIRE(early == bytes_of("early"));
}

asio::awaitable<void> keep_order_of_many(TcpWorld& world) {
  Link link = co_await world.make_link(patient_options());
  for (uint64_t i = 0; i < 2000; ++i) {
    const auto bytes = numbered_bytes(i * 37 % 5000, i);
    link.sender->send(MessageKind::kPlan, kEpoch, PlanId(i), bytes);
    link.sender->send(MessageKind::kActivations, kEpoch, PlanId(i), bytes);
    const Message plan = co_await link.receiver->receive(MessageKind::kPlan);
    const auto activations = co_await receive_activations(*link.receiver, PlanId(i), bytes.size());
    REQUIRE(plan.plan == PlanId(i));
    REQUIRE(same_bytes(plan.payload.bytes(), bytes));
    REQUIRE(same_bytes(activations, bytes));
  }
  REQUIRE(link.sender->stats().messages_sent == 4000);
  REQUIRE(link.receiver->stats().messages_received == 4000);
  REQUIRE(link.sender->stats().bytes_sent == link.receiver->stats().bytes_received);
}

asio::awaitable<void> carry_big_tensors(TcpWorld& world) {
  constexpr size_t kSize = size_t{64} << 20;
  Link link = co_await world.make_link(patient_options());
  const std::vector<std::byte> tensors[] = {numbered_bytes(kSize, 1), numbered_bytes(kSize, 2)};
  for (uint64_t i = 0; i < 4; ++i) {
    Work work = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(i), tensors[i % 2]);
    const auto received = co_await receive_activations(*link.receiver, PlanId(i), kSize);
    REQUIRE(same_bytes(received, tensors[i % 2]));
    co_await work.commit();
  }
}

/// The receiver does not take anything before the sender has committed: the bytes are the kernel's then.
asio::awaitable<void> commit_when_handed_over(TcpWorld& world) {
  Link link = co_await world.make_link(patient_options());
  auto buffer = bytes_of("activations");
  Work work = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(1), buffer);
  co_await work.commit();
  std::ranges::fill(buffer, std::byte{0});
  const auto activations = co_await receive_activations(*link.receiver, PlanId(1), buffer.size());
  REQUIRE(activations == bytes_of("activations"));
  co_await work.commit();  // nothing is under way any more

  auto plan = bytes_of("plan");
  Work copied = link.sender->send_borrowed(MessageKind::kPlan, kEpoch, PlanId(1), plan);
  co_await copied.commit();
  std::ranges::fill(plan, std::byte{0});
  const Message received = co_await link.receiver->receive(MessageKind::kPlan);
  REQUIRE(text_of(received) == "plan");
}

/// More than the sockets hold is under way when the receiver goes: the buffer must come back, and so must later ones.
asio::awaitable<void> release_when_broken(TcpWorld& world) {
  Link link = co_await world.make_link(patient_options());
  const auto buffer = numbered_bytes(size_t{64} << 20, 0);
  Work work = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(1), buffer);
  Work queued = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(2), buffer);
  link.receiver->close("stage failed");
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE(reason == "stage failed");
  co_await work.commit();
  co_await queued.commit();
  Work late = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(3), buffer);
  co_await late.commit();
  REQUIRE_FALSE(link.sender->stats().open);
}

/// A sender that is destroyed touches its user's memory no more; the receiver still learns why.
asio::awaitable<void> abandon_borrowed_memory(TcpWorld& world) {
  std::vector<std::byte> memory(size_t{64} << 20);
  Link link = co_await world.make_link(patient_options());
  link.receiver->post(PlanId(1), memory);
  {
    const auto buffer = numbered_bytes(size_t{64} << 20, 0);
    (void)link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(1), buffer);
    link.sender->send(MessageKind::kPlan, kEpoch, PlanId(1), bytes_of("plan"));
    co_await async::sleep_for(world.runtime, 1ms);
    link.sender->close("stage 0 failed");
    link.sender.reset();
  }
  const Message plan = co_await link.receiver->receive(MessageKind::kPlan);
  REQUIRE(text_of(plan) == "plan");
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE(reason == "stage 0 failed");
}

asio::awaitable<void> deliver_before_closing(TcpWorld& world) {
  const auto tensor = numbered_bytes(size_t{16} << 20, 0);
  std::vector<std::byte> memory[] = {std::vector<std::byte>(tensor.size()), std::vector<std::byte>(tensor.size())};
  Link link = co_await world.make_link(patient_options());
  for (uint64_t i = 1; i <= 2; ++i) link.receiver->post(PlanId(i), memory[i - 1]);
  link.sender->send(MessageKind::kActivations, kEpoch, PlanId(1), tensor);
  link.sender->send(MessageKind::kActivations, kEpoch, PlanId(2), tensor);
  link.sender->send(MessageKind::kPlan, kEpoch, PlanId(2), bytes_of("last"));
  link.sender->close("the head has stopped");
  link.sender->close("a later reason does not count");
  link.sender->send(MessageKind::kPlan, kEpoch, PlanId(3), bytes_of("too late"));
  const Message last = co_await link.receiver->receive(MessageKind::kPlan);
  REQUIRE(text_of(last) == "last");
  const std::string plans_end = co_await failure_of(*link.receiver, MessageKind::kPlan);
  REQUIRE(plans_end == "the head has stopped");
  for (uint64_t i = 1; i <= 2; ++i) {
    const Message message = co_await link.receiver->receive(MessageKind::kActivations);
    REQUIRE(message.plan == PlanId(i));
    REQUIRE(same_bytes(message.payload.bytes(), tensor));
  }
  const std::string data_ends = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE(data_ends == "the head has stopped");
}

asio::awaitable<void> leave_without_closing(TcpWorld& world) {
  Link link = co_await world.make_link(patient_options());
  link.sender->send(MessageKind::kOutput, kEpoch, PlanId(1), bytes_of("last"));
  link.sender.reset();
  const Message last = co_await link.receiver->receive(MessageKind::kOutput);
  REQUIRE(text_of(last) == "last");
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kOutput);
  REQUIRE(reason == "the sender is gone");
  link.receiver.reset();
  while (!world.group.stats().empty()) co_await async::sleep_for(world.runtime, 1ms);
}

/// While 256 MiB of activations are in the sender's hands, plans go through.
asio::awaitable<void> keep_lanes_apart(TcpWorld& world) {
  Link link = co_await world.make_link(patient_options());
  const auto tensor = numbered_bytes(size_t{64} << 20, 0);
  std::vector<Work> works;
  for (uint64_t i = 0; i < 4; ++i) {
    works.push_back(link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(i), tensor));
  }
  bool all_handed_over = false;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("commit", commit_into(works.back(), all_handed_over));
  for (uint64_t i = 0; i < 20; ++i) {
    link.sender->send(MessageKind::kPlan, kEpoch, PlanId(i), bytes_of("plan"));
    const Message plan = co_await link.receiver->receive(MessageKind::kPlan);
    REQUIRE(plan.plan == PlanId(i));
  }
  REQUIRE_FALSE(all_handed_over);
  for (uint64_t i = 0; i < 4; ++i) {
    (void)co_await receive_activations(*link.receiver, PlanId(i), tensor.size());
  }
  co_await tasks.join();
  REQUIRE(link.sender->stats().send_queue_high_water == 4);
}

asio::awaitable<void> refuse_to_queue_without_bound(TcpWorld& world) {
  auto options = patient_options(2);
  const auto tensor = numbered_bytes(size_t{16} << 20, 0);
  std::vector<std::byte> memory(tensor.size());
  Link link = co_await world.make_link(options);
  link.receiver->post(PlanId(0), memory);
  std::vector<Work> works;
  for (uint64_t i = 0; i < 3; ++i) {
    works.push_back(link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(i), tensor));
  }
  for (Work& work : works) co_await work.commit();
  REQUIRE_FALSE(link.sender->stats().open);
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE_THAT(reason, Catch::Contains("more activations messages wait to be sent to stage 1"));
}

asio::awaitable<void> refuse_a_flood(TcpWorld& world) {
  auto options = patient_options(2);
  Link link = co_await world.make_link(options);
  for (int i = 0; i < 1000; ++i) link.sender->send(MessageKind::kAcks, kEpoch, PlanId(0), {});  // belong to no plan
  while (link.receiver->stats().messages_received < 1000) co_await async::sleep_for(world.runtime, 1ms);
  for (uint64_t i = 0; i < 3; ++i) {
    link.sender->send(MessageKind::kPlan, kEpoch, PlanId(i), {});
    while (link.sender->stats().messages_sent <= 1000 + i) co_await async::sleep_for(world.runtime, 1ms);
  }
  while (link.receiver->stats().open) co_await async::sleep_for(world.runtime, 1ms);
  (void)co_await link.receiver->receive(MessageKind::kPlan);
  (void)co_await link.receiver->receive(MessageKind::kPlan);
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kPlan);
  REQUIRE_THAT(reason, Catch::Contains("more plan messages from stage 0 at 127.0.0.1"));
}

asio::awaitable<void> drop_the_old_generation(TcpWorld& world) {
  Link link = co_await world.make_link(patient_options());
  link.sender->send(MessageKind::kPlan, RingEpoch(2), PlanId(7), bytes_of("old"));
  link.sender->send(MessageKind::kActivations, RingEpoch(2), PlanId(7), numbered_bytes(100000, 7));
  link.sender->send(MessageKind::kActivations, kEpoch, PlanId(1), bytes_of("new"));
  link.sender->send(MessageKind::kPlan, kEpoch, PlanId(1), bytes_of("new"));
  const Message message = co_await link.receiver->receive(MessageKind::kPlan);
  REQUIRE(text_of(message) == "new");
  const auto activations = co_await receive_activations(*link.receiver, PlanId(1), 3);
  REQUIRE(activations == bytes_of("new"));
  REQUIRE(link.receiver->stats().messages_dropped == 2);
  link.sender->send(MessageKind::kPlan, RingEpoch(4), PlanId(1), {});
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kPlan);
  REQUIRE_THAT(reason, Catch::Contains("epoch 4 on a link of epoch 3"));
}

asio::awaitable<void> measure_the_round_trip(TcpWorld& world) {
  auto options = patient_options();
  options.heartbeat = 5ms;
  Link link = co_await world.make_link(options);
  while (link.sender->stats().round_trip_ns == 0 || link.receiver->stats().round_trip_ns == 0) {
    co_await async::sleep_for(world.runtime, 1ms);
  }
  const std::vector<LinkStats> all = world.group.stats();
  REQUIRE(all.size() == 2);
  REQUIRE(all[0].name == "stage 0 -> stage 1");
  REQUIRE(all[0].sending != all[1].sending);
}

/// A receiver that holds on to payloads after the link is gone.
asio::awaitable<void> outlive_the_link(TcpWorld& world, Message& kept) {
  Link link = co_await world.make_link(patient_options());
  link.sender->send(MessageKind::kPlan, kEpoch, PlanId(1), bytes_of("kept"));
  kept = co_await link.receiver->receive(MessageKind::kPlan);
}

}  // namespace

TEST_CASE("TCP: kinds keep their own order and an early kind waits") {
  TcpWorld world;
  world.run(keep_order(world));
}

TEST_CASE("TCP: thousands of messages of all sizes arrive in order") {
  TcpWorld world;
  world.run(keep_order_of_many(world));
}

TEST_CASE("TCP: tensors of 64 MiB arrive whole") {
  TcpWorld world;
  world.run(carry_big_tensors(world));
}

TEST_CASE("TCP: a borrowed buffer may be written again after commit") {
  TcpWorld world;
  world.run(commit_when_handed_over(world));
}

TEST_CASE("TCP: a link that breaks lets borrowed buffers go") {
  TcpWorld world;
  world.run(release_when_broken(world));
}

TEST_CASE("TCP: a sender that is destroyed leaves borrowed memory alone") {
  TcpWorld world;
  world.run(abandon_borrowed_memory(world));
}

TEST_CASE("TCP: a closed link delivers and then gives its reason") {
  TcpWorld world;
  world.run(deliver_before_closing(world));
}

TEST_CASE("TCP: a sender that leaves says so") {
  TcpWorld world;
  world.run(leave_without_closing(world));
}

TEST_CASE("TCP: activations do not hold up plans") {
  TcpWorld world;
  world.run(keep_lanes_apart(world));
}

TEST_CASE("TCP: the queue of the sender has the window as its bound") {
  TcpWorld world;
  world.run(refuse_to_queue_without_bound(world));
}

TEST_CASE("TCP: the inboxes of the receiver have the window as bound") {
  TcpWorld world;
  world.run(refuse_a_flood(world));
}

TEST_CASE("TCP: old epochs are dropped and a new epoch breaks the link") {
  TcpWorld world;
  world.run(drop_the_old_generation(world));
}

TEST_CASE("TCP: heartbeats measure the round trip") {
  TcpWorld world;
  world.run(measure_the_round_trip(world));
}

TEST_CASE("TCP: a payload outlives its link") {
  Message kept;
  {
    TcpWorld world;
    world.run(outlive_the_link(world, kept));
  }
  REQUIRE(text_of(kept) == "kept");
}
