#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

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

namespace {

constexpr size_t kBig = size_t{16} << 20;
/// What a receiver may have read of a frame that nobody has posted a receive for.
constexpr uint64_t kReadAhead = 64 << 10;

/// Until everything that can happen without us has happened on this executor.
asio::awaitable<void> turn_around(TcpWorld& world, int times) {
  for (int i = 0; i < times; ++i) co_await asio::post(world.runtime.executor(), asio::use_awaitable);
}

asio::awaitable<void> post_early(TcpWorld& world) {
  std::vector<std::byte> first(100);
  std::vector<std::byte> second(kBig);
  Link link = co_await world.make_link(patient_options());
  REQUIRE(link.receiver->fills_posted());
  link.receiver->post(PlanId(1), first);
  link.receiver->post(PlanId(2), second);
  const auto small = numbered_bytes(first.size(), 1);
  const auto big = numbered_bytes(second.size(), 2);
  Work one = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(1), small);
  Work two = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(2), big);
  const Message a = co_await link.receiver->receive(MessageKind::kActivations);
  const Message b = co_await link.receiver->receive(MessageKind::kActivations);
  REQUIRE(a.payload.bytes().data() == first.data());
  REQUIRE(b.payload.bytes().data() == second.data());
  REQUIRE(same_bytes(first, small));
  REQUIRE(same_bytes(second, big));
  co_await one.commit();
  co_await two.commit();
}

/// What nobody has posted a receive for waits outside, as much as it is; plans pass it.
asio::awaitable<void> post_late(TcpWorld& world) {
  constexpr uint64_t kTensors = 4;
  Link link = co_await world.make_link(patient_options());
  const auto tensor = numbered_bytes(kBig, 3);
  std::vector<Work> works;
  for (uint64_t i = 0; i < kTensors; ++i) {
    works.push_back(link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(i), tensor));
  }
  bool all_handed_over = false;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("commit", commit_into(works.back(), all_handed_over));
  for (uint64_t i = 0; i < 50; ++i) {
    link.sender->send(MessageKind::kPlan, kEpoch, PlanId(i), bytes_of("plan"));
    (void)co_await link.receiver->receive(MessageKind::kPlan);
    co_await async::sleep_for(world.runtime, 1ms);
  }
  REQUIRE(link.receiver->stats().bytes_received < kReadAhead);
  REQUIRE_FALSE(all_handed_over);
  for (uint64_t i = 0; i < kTensors; ++i) {
    const auto received = co_await receive_activations(*link.receiver, PlanId(i), kBig);
    REQUIRE(same_bytes(received, tensor));
  }
  co_await tasks.join();
}

/// For longer than the kernel may take a peer without room for a dead one.
asio::awaitable<void> post_very_late(TcpWorld& world) {
  TcpLinkOptions options = patient_options();
  options.silence = 500ms;
  options.heartbeat = 50ms;
  options.socket_buffer_bytes = 64 << 10;
  Link link = co_await world.make_link(options);
  const auto tensor = numbered_bytes(kBig, 6);
  Work work = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(1), tensor);
  co_await async::sleep_for(world.runtime, 8 * options.silence);
  const auto received = co_await receive_activations(*link.receiver, PlanId(1), kBig);
  REQUIRE(same_bytes(received, tensor));
  co_await work.commit();
}

asio::awaitable<void> refuse(TcpWorld& world, PlanId posted_plan, size_t posted_size, std::string wanted) {
  std::vector<std::byte> memory(posted_size, std::byte{7});
  const std::vector<std::byte> before = memory;
  Link link = co_await world.make_link(patient_options());
  link.receiver->post(posted_plan, memory);
  const auto tensor = numbered_bytes(50000, 4);
  Work work = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(6), tensor);
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE_THAT(reason, Catch::StartsWith("stage 0 at 127.0.0.1:") && Catch::Contains(wanted));
  REQUIRE(same_bytes(memory, before));
  const std::string plans_end = co_await failure_of(*link.receiver, MessageKind::kPlan);
  REQUIRE(plans_end == reason);
  co_await work.commit();
  while (link.sender->stats().open) co_await async::sleep_for(world.runtime, 1ms);
}

/// After the first `turns` of the executor the receiver closes: from then on the memory is the user's.
asio::awaitable<void> close_while_posted(TcpWorld& world, size_t size, int turns) {
  std::vector<std::byte> memory(size);
  Link link = co_await world.make_link(patient_options());
  const auto tensor = numbered_bytes(size, 5);
  link.receiver->post(PlanId(1), memory);
  Work work = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(1), tensor);
  co_await turn_around(world, turns);
  link.receiver->close("stage failed");
  const std::vector<std::byte> mine(size, std::byte{0xA5});
  memory = mine;
  link.receiver->post(PlanId(2), memory);
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE(reason == "stage failed");
  co_await work.commit();
  while (!world.group.stats().empty()) co_await async::sleep_for(world.runtime, 1ms);
  co_await turn_around(world, 20);
  REQUIRE(same_bytes(memory, mine));
}

asio::awaitable<void> close_at_every_turn(TcpWorld& world) {
  for (const size_t size : {size_t{100}, size_t{20000}, size_t{3} << 20}) {
    for (int turns = 0; turns < 40; ++turns) co_await close_while_posted(world, size, turns);
  }
}

/// The memory of an epoch that ended in the middle of a transfer serves the next one.
asio::awaitable<void> change_generation_while_posted(TcpWorld& world) {
  std::vector<std::byte> memory(kBig);
  const auto old_tensor = numbered_bytes(kBig, 6);
  const auto new_tensor = numbered_bytes(kBig, 7);
  Link old_link = co_await world.make_link(patient_options());
  old_link.receiver->post(PlanId(1), memory);
  Work old_work = old_link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(1), old_tensor);
  while (old_link.receiver->stats().bytes_received < kBig / 4) co_await turn_around(world, 1);
  REQUIRE(old_link.receiver->stats().messages_received == 0);
  old_link.receiver->close("the ring is broken");

  LinkHello hello = test::sample_hello();
  hello.epoch = RingEpoch(kEpoch.value() + 1);
  Link link = co_await world.make_link(patient_options(), hello);
  link.receiver->post(PlanId(1), memory);
  // What an old epoch still sends on the new link is not what was posted for, whatever its number.
  link.sender->send(MessageKind::kActivations, kEpoch, PlanId(1), old_tensor);
  Work work = link.sender->send_borrowed(MessageKind::kActivations, hello.epoch, PlanId(1), new_tensor);
  const Message message = co_await link.receiver->receive(MessageKind::kActivations);
  REQUIRE(message.epoch == hello.epoch);
  REQUIRE(same_bytes(memory, new_tensor));
  REQUIRE(link.receiver->stats().messages_dropped == 1);
  co_await work.commit();
  co_await old_work.commit();
}

/// A payload that has come whole is still delivered when the link has ended behind it.
asio::awaitable<void> deliver_what_has_come(TcpWorld& world) {
  std::vector<std::byte> memory(1000);
  Link link = co_await world.make_link(patient_options());
  link.receiver->post(PlanId(1), memory);
  const auto tensor = numbered_bytes(memory.size(), 8);
  link.sender->send(MessageKind::kActivations, kEpoch, PlanId(1), tensor);
  while (link.receiver->stats().messages_received == 0) co_await async::sleep_for(world.runtime, 1ms);
  link.sender->close("the head has stopped");
  while (link.receiver->stats().open) co_await async::sleep_for(world.runtime, 1ms);
  const Message message = co_await link.receiver->receive(MessageKind::kActivations);
  REQUIRE(same_bytes(message.payload.bytes(), tensor));
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE(reason == "the head has stopped");
}

/// Nobody ever has room for what was sent: both ends give up, and the memory is the sender's again.
asio::awaitable<void> give_up_delivery(TcpWorld& world) {
  auto options = patient_options();
  options.linger = 200ms;
  Link link = co_await world.make_link(options);
  const auto tensor = numbered_bytes(kBig, 10);
  Work work = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(1), tensor);
  link.sender->close("the stage has failed");
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE_THAT(reason, Catch::StartsWith("the stage has failed"));
  co_await work.commit();
  while (!world.group.stats().empty()) co_await async::sleep_for(world.runtime, 1ms);
}

/// The reason of an end comes while nobody has room for activations; these come when somebody has, and the silence of
/// the sender's control lane in between is no sign of death.
asio::awaitable<void> say_goodbye_before_data(TcpWorld& world) {
  auto options = patient_options();
  options.heartbeat = 10ms;
  options.silence = 200ms;
  Link link = co_await world.make_link(options);
  const auto tensor = numbered_bytes(kBig, 9);
  link.sender->send(MessageKind::kPlan, kEpoch, PlanId(1), bytes_of("last"));
  std::vector<Work> works;
  for (uint64_t i = 1; i <= 2; ++i) {
    works.push_back(link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(i), tensor));
  }
  link.sender->close("the stage has failed");
  const Message last = co_await link.receiver->receive(MessageKind::kPlan);
  REQUIRE(last.plan == PlanId(1));
  const std::string plans_end = co_await failure_of(*link.receiver, MessageKind::kPlan);
  REQUIRE(plans_end == "the stage has failed");
  REQUIRE(link.receiver->stats().bytes_received < kReadAhead);
  co_await async::sleep_for(world.runtime, 3 * options.silence);
  for (uint64_t i = 1; i <= 2; ++i) {
    const auto received = co_await receive_activations(*link.receiver, PlanId(i), kBig);
    REQUIRE(same_bytes(received, tensor));
  }
  const std::string data_ends = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE(data_ends == "the stage has failed");
  for (Work& work : works) co_await work.commit();
}

}  // namespace

TEST_CASE("TCP: activations posted early arrive where they shall lie") {
  TcpWorld world;
  world.run(post_early(world));
}

TEST_CASE("TCP: activations without a posted receive wait at the sender") {
  TcpWorld world;
  world.run(post_late(world));
}

TEST_CASE("TCP: activations may wait longer than the silence limit") {
  TcpWorld world;
  world.run(post_very_late(world));
}

TEST_CASE("TCP: activations of another plan or size end the link") {
  TcpWorld world;
  world.run(
      refuse(world, PlanId(5), 50000, "activations of plan 6, 50000 bytes, where plan 5, 50000 bytes, was wanted"));
  TcpWorld other;
  other.run(
      refuse(other, PlanId(6), 49999, "activations of plan 6, 50000 bytes, where plan 6, 49999 bytes, was wanted"));
}

TEST_CASE("TCP: posted memory is free when close has returned") {
  TcpWorld world;
  world.run(close_at_every_turn(world));
}

TEST_CASE("TCP: memory posted to an ended epoch serves the next one") {
  TcpWorld world;
  world.run(change_generation_while_posted(world));
}

TEST_CASE("TCP: the reason of an end does not wait for activations") {
  TcpWorld world;
  world.run(say_goodbye_before_data(world));
}

TEST_CASE("TCP: a closed link ends although it cannot deliver") {
  TcpWorld world;
  world.run(give_up_delivery(world));
}

TEST_CASE("TCP: activations that have come whole outlive the link") {
  TcpWorld world;
  world.run(deliver_what_has_come(world));
}
