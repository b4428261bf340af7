#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "comm/frame.h"
#include "comm/tcp_support.h"

using namespace millrace;
using namespace millrace::comm;
using namespace std::chrono_literals;
using test::patient_options;
using test::sample_hello;
using test::TcpWorld;
using tcp = asio::ip::tcp;

namespace {

using Accepted = std::optional<Result<std::unique_ptr<LinkReceiver>>>;

asio::awaitable<void> accept_into(TcpWorld& world, LinkHello hello, async::TimePoint deadline, Accepted& accepted) {
  accepted.emplace(co_await world.listener->accept_link(world.group, hello, patient_options(), deadline));
}

asio::awaitable<Result<std::unique_ptr<LinkSender>>> connect(TcpWorld& world, LinkHello hello) {
  return connect_link(world.runtime, world.group, world.listener->endpoint(), hello, patient_options(), world.soon());
}

tcp::socket connect_stranger(TcpWorld& world) {
  tcp::socket socket(world.context);
  socket.connect({asio::ip::make_address("127.0.0.1"), world.listener->endpoint().port});
  return socket;
}

/// Calls connect_link until the deadline, and longer where a delayed thread has left no time for one try.
asio::awaitable<Error> connect_in_vain(TcpWorld& world, TcpEndpoint there, LinkHello hello) {
  std::optional<Error> failure;
  for (auto patience = 1s; patience < test::kPatience; patience *= 4) {
    auto link = co_await connect_link(world.runtime, world.group, there, hello, patient_options(),
                                      world.runtime.now() + patience);
    failure = link.error();
    if (!failure->message.ends_with("no answer")) break;
  }
  co_return *failure;
}

asio::awaitable<bool> is_closed_by_peer(tcp::socket& socket) {
  std::array<std::byte, 4096> bytes;
  boost::system::error_code failure;
  while (!failure) {
    co_await socket.async_read_some(asio::buffer(bytes), asio::redirect_error(asio::use_awaitable, failure));
  }
  co_return true;
}

/// A peer whose hello is `presented`; afterwards the one who is expected gets through all the same.
asio::awaitable<void> refuse(TcpWorld& world, LinkHello presented, std::string reason) {
  Accepted accepted;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("accept", accept_into(world, sample_hello(), world.soon(), accepted));
  const auto refused = co_await connect(world, presented);
  REQUIRE(refused.error().code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(refused.error().message, Catch::EndsWith("refused: " + reason));
  REQUIRE_FALSE(accepted.has_value());
  const auto welcome = co_await connect(world, sample_hello());
  REQUIRE(welcome.has_value());
  co_await tasks.join();
  REQUIRE(accepted->has_value());
}

/// Refuses a hello that may match later: the peer tries until its own deadline, and then knows why.
asio::awaitable<void> refuse_for_now(TcpWorld& world, LinkHello presented, std::string reason) {
  Accepted accepted;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("accept", accept_into(world, sample_hello(), world.soon(), accepted));
  const Error refused = co_await connect_in_vain(world, world.listener->endpoint(), presented);
  REQUIRE(refused.code == ErrorCode::kTimeout);
  REQUIRE_THAT(refused.message, Catch::EndsWith("refused: " + reason));
  const auto welcome = co_await connect(world, sample_hello());
  REQUIRE(welcome.has_value());
  co_await tasks.join();
  REQUIRE(accepted->has_value());
}

asio::awaitable<void> refuse_each_field(TcpWorld& world) {
  LinkHello hello = sample_hello();
  hello.protocol_version = 9;
  co_await refuse(world, hello, fmt::format("peer speaks protocol 9, wanted {}", kProtocolVersion));
  hello = sample_hello();
  hello.fingerprint_high = 0xAB;
  co_await refuse(world, hello,
                  "peer has model fingerprint 00000000000000ab0000000000000008, wanted "
                  "00000000000000070000000000000008");
  hello = sample_hello();
  hello.page_size = 64;
  co_await refuse(world, hello, "peer's page size is 64, wanted 16");
  hello = sample_hello();
  hello.layer_count = 32;
  co_await refuse(world, hello, "peer's model has 32 layers, wanted 24");
  hello = sample_hello();
  hello.hidden_row_bytes = 1024;
  co_await refuse(world, hello, "peer's activation rows have 1024 bytes, wanted 4096");
  hello = sample_hello();
  hello.epoch = RingEpoch(2);
  co_await refuse(world, hello, "peer is of epoch 2, wanted 3");
}

asio::awaitable<void> refuse_what_may_match_later(TcpWorld& world) {
  LinkHello hello = sample_hello();
  hello.epoch = RingEpoch(4);
  co_await refuse_for_now(world, hello, "peer is of epoch 4, wanted 3");
  hello = sample_hello();
  hello.ring = 5;
  co_await refuse_for_now(world, hello, "peer is of ring 0000000000000005, wanted 0000000000001234");
  hello = sample_hello();
  hello.from = StageId(5);
  co_await refuse_for_now(world, hello, "peer links stage 5 -> stage 1, wanted stage 0 -> stage 1");
  hello = sample_hello();
  hello.to = kHeadId;
  co_await refuse_for_now(world, hello, "peer links stage 0 -> the head, wanted stage 0 -> stage 1");
}

asio::awaitable<void> accept_several_in_any_order(TcpWorld& world) {
  LinkHello other = sample_hello();
  other.from = StageId(1);
  other.to = kHeadId;
  Accepted first;
  Accepted second;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("accept", accept_into(world, sample_hello(), world.soon(), first));
  tasks.spawn("accept", accept_into(world, other, world.soon(), second));
  const auto to_second = co_await connect(world, other);
  const auto to_first = co_await connect(world, sample_hello());
  co_await tasks.join();
  REQUIRE(to_second.value()->stats().name == second->value()->stats().name);
  REQUIRE(to_first.value()->stats().name == first->value()->stats().name);
}

asio::awaitable<void> connect_before_accepting(TcpWorld& world) {
  std::optional<Result<std::unique_ptr<LinkSender>>> sender;
  auto connect_into = [](TcpWorld& w, auto& into) -> asio::awaitable<void> {
    into.emplace(co_await connect(w, sample_hello()));
  };
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("connect", connect_into(world, sender));
  co_await async::sleep_for(world.runtime, 20ms);
  REQUIRE_FALSE(sender.has_value());
  const auto receiver =
      co_await world.listener->accept_link(world.group, sample_hello(), patient_options(), world.soon());
  REQUIRE(receiver.has_value());
  co_await tasks.join();
  REQUIRE(sender->has_value());
}

asio::awaitable<void> give_up_at_the_deadline(TcpWorld& world) {
  const auto nobody =
      co_await world.listener->accept_link(world.group, sample_hello(), patient_options(), world.runtime.now() + 20ms);
  REQUIRE(nobody.error().code == ErrorCode::kTimeout);
  REQUIRE(nobody.error().message == "no peer connected for the link stage 0 -> stage 1");
  tcp::acceptor unused(world.context, {asio::ip::make_address("127.0.0.1"), 0});
  const TcpEndpoint nowhere{"127.0.0.1", unused.local_endpoint().port()};
  unused.close();
  const Error refused = co_await connect_in_vain(world, nowhere, sample_hello());
  REQUIRE(refused.code == ErrorCode::kTimeout);
  REQUIRE_THAT(refused.message, Catch::EndsWith("Connection refused"));
  const auto unknown = co_await connect_link(world.runtime, world.group, {"stage-1", 1}, sample_hello(),
                                             patient_options(), world.soon());
  REQUIRE(unknown.error().code == ErrorCode::kInvalidArgument);
  REQUIRE(unknown.error().message == "link stage 0 -> stage 1 with stage-1:1: 'stage-1' is no address");
}

asio::awaitable<void> survive_strangers(TcpWorld& world) {
  Accepted accepted;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("accept", accept_into(world, sample_hello(), world.soon(), accepted));
  FrameHeader huge{kProtocolVersion, FrameKind::kHello, 0, RingEpoch(3), 0, ~uint64_t{0}};
  FrameHeader plan{kProtocolVersion, FrameKind::kPlan, 0, RingEpoch(3), 0, 0};
  const auto huge_bytes = encode_header(huge);
  const auto plan_bytes = encode_header(plan);
  const std::vector<std::vector<std::byte>> openings = {
      test::bytes_of("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
      std::vector<std::byte>(1000, std::byte{0xFF}),
      {huge_bytes.begin(), huge_bytes.end()},
      {plan_bytes.begin(), plan_bytes.end()},
  };
  for (const auto& opening : openings) {
    tcp::socket stranger = connect_stranger(world);
    co_await asio::async_write(stranger, asio::buffer(opening), asio::use_awaitable);
    const bool closed = co_await is_closed_by_peer(stranger);
    REQUIRE(closed);
  }
  // Connections with half a header, or with a hello of a byte at a time, are closed when their time is up.
  tcp::socket silent = connect_stranger(world);
  tcp::socket half = connect_stranger(world);
  co_await asio::async_write(half, asio::buffer(huge_bytes.data(), 20), asio::use_awaitable);
  const bool half_closed = co_await is_closed_by_peer(half);
  const bool silent_closed = co_await is_closed_by_peer(silent);
  REQUIRE(half_closed);
  REQUIRE(silent_closed);
  tcp::socket slow = connect_stranger(world);
  const auto hello = encode_hello({sample_hello(), Lane::kControl, 1});
  boost::system::error_code failure;
  for (size_t i = 0; i < hello.size() && !failure; ++i) {
    co_await async::sleep_for(world.runtime, 20ms);
    co_await asio::async_write(slow, asio::buffer(&hello[i], 1), asio::redirect_error(asio::use_awaitable, failure));
  }
  REQUIRE(failure);
  REQUIRE_FALSE(accepted.has_value());
  const auto sender = co_await connect(world, sample_hello());
  REQUIRE(sender.has_value());
  co_await tasks.join();
  REQUIRE(accepted->has_value());
}

asio::awaitable<void> turn_a_crowd_away(TcpWorld& world) {
  std::vector<tcp::socket> crowd;
  for (int i = 0; i < 4; ++i) crowd.push_back(connect_stranger(world));
  tcp::socket one_too_many = connect_stranger(world);
  const bool closed = co_await is_closed_by_peer(one_too_many);
  REQUIRE(closed);
  crowd.clear();
  Accepted accepted;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("accept", accept_into(world, sample_hello(), world.soon(), accepted));
  const auto sender = co_await connect(world, sample_hello());
  REQUIRE(sender.has_value());
  co_await tasks.join();
}

asio::awaitable<void> stop_waiting(TcpWorld& world) {
  Accepted accepted;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("accept", accept_into(world, sample_hello(), world.soon(), accepted));
  co_await async::sleep_for(world.runtime, 1ms);
  world.listener->close();
  co_await tasks.join();
  REQUIRE(accepted->error().code == ErrorCode::kUnavailable);
}

TcpListenerOptions hasty() {
  return {.hello_timeout = 200ms, .max_pending_connections = 64};
}

}  // namespace

TEST_CASE("TCP: a hello that cannot match is refused by field name") {
  TcpWorld world;
  world.run(refuse_each_field(world));
}

TEST_CASE("TCP: a hello that may match later is refused at its time-out") {
  TcpWorld world(hasty());
  world.run(refuse_what_may_match_later(world));
}

TEST_CASE("TCP: one listener serves several links in any order") {
  TcpWorld world;
  world.run(accept_several_in_any_order(world));
}

TEST_CASE("TCP: a sender may come before it is expected") {
  TcpWorld world;
  world.run(connect_before_accepting(world));
}

TEST_CASE("TCP: both sides give up at their deadline and say why") {
  TcpWorld world;
  world.run(give_up_at_the_deadline(world));
}

TEST_CASE("TCP: garbage and half hellos are closed and harm nothing") {
  TcpWorld world(hasty());
  world.run(survive_strangers(world));
}

TEST_CASE("TCP: connections without a hello are bounded") {
  TcpWorld world({.hello_timeout = test::kPatience, .max_pending_connections = 4});
  world.run(turn_a_crowd_away(world));
}

TEST_CASE("TCP: closing the listener ends those who wait") {
  TcpWorld world;
  world.run(stop_waiting(world));
}

TEST_CASE("TCP: an address that is taken is an error that names it") {
  TcpWorld world;
  const auto second = TcpListener::open(world.runtime, world.listener->endpoint());
  REQUIRE_THAT(second.error().message, Catch::Contains("cannot listen on " + world.listener->endpoint().to_string()));
  auto idle = [](TcpWorld&) -> asio::awaitable<void> { co_return; };
  world.run(idle(world));
}
