#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "comm/tcp_handshake.h"
#include "comm/tcp_support.h"

using namespace millrace;
using namespace millrace::comm;
using namespace std::chrono_literals;
using test::patient_options;
using test::sample_hello;
using test::TcpWorld;

namespace {

using Accepted = std::optional<Result<std::unique_ptr<LinkReceiver>>>;
/// The lanes of attempt 2, which counts, and of others, in the order in which they come.
using Lanes = std::vector<std::pair<uint64_t, Lane>>;
using Connected = std::optional<Result<std::unique_ptr<LinkSender>>>;

asio::awaitable<void> accept_into(TcpWorld& world, Accepted& accepted) {
  accepted.emplace(co_await world.listener->accept_link(world.group, sample_hello(), patient_options(), world.soon()));
}

/// One lane of an attempt, spoken by hand; a moment later the listener has heard it.
asio::awaitable<tcp::socket> present(TcpWorld& world, uint64_t attempt, Lane lane) {
  tcp::socket socket(world.context);
  const tcp::endpoint there(asio::ip::address_v4::loopback(), world.listener->endpoint().port);
  co_await socket.async_connect(there, asio::use_awaitable);
  const auto hello = encode_hello({sample_hello(), lane, attempt});
  co_await asio::async_write(socket, asio::buffer(hello), asio::use_awaitable);
  co_await async::sleep_for(world.runtime, 10ms);
  co_return socket;
}

asio::awaitable<void> hear_welcome(tcp::socket& socket) {
  const HandshakeFrame answer = co_await read_handshake(socket);
  REQUIRE(answer.header.kind == FrameKind::kWelcome);
}

/// Lanes of attempts that their sender has left behind come before, between and after those of the one that counts.
asio::awaitable<void> pass_what_was_left_behind(TcpWorld& world, Lanes lanes) {
  Accepted accepted;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("accept", accept_into(world, accepted));
  std::vector<tcp::socket> newest;
  std::vector<tcp::socket> others;
  for (const auto& [attempt, lane] : lanes) {
    tcp::socket socket = co_await present(world, attempt, lane);
    (attempt == 2 ? newest : others).push_back(std::move(socket));
  }
  co_await tasks.join();
  REQUIRE(accepted->has_value());
  for (tcp::socket& lane : newest) co_await hear_welcome(lane);
  // Such attempts are closed with the wait for the link.
  for (tcp::socket& lane : others) {
    std::byte byte;
    boost::system::error_code failure;
    co_await lane.async_read_some(asio::buffer(&byte, 1), asio::redirect_error(asio::use_awaitable, failure));
    REQUIRE(failure);
  }
}

asio::awaitable<void> forget_the_oldest_of_many(TcpWorld& world) {
  Accepted accepted;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("accept", accept_into(world, accepted));
  std::vector<tcp::socket> halves;
  for (uint64_t attempt = 0; attempt < 20; ++attempt) {
    tcp::socket half = co_await present(world, attempt, Lane::kControl);
    halves.push_back(std::move(half));
  }
  for (size_t i = 0; i < 12; ++i) {
    std::byte byte;
    boost::system::error_code failure;
    co_await halves[i].async_read_some(asio::buffer(&byte, 1), asio::redirect_error(asio::use_awaitable, failure));
    REQUIRE(failure == asio::error::eof);
  }
  REQUIRE_FALSE(accepted.has_value());
  tcp::socket data = co_await present(world, 12, Lane::kData);
  co_await tasks.join();
  REQUIRE(accepted->has_value());
  co_await hear_welcome(halves[12]);
  co_await hear_welcome(data);
}

asio::awaitable<void> connect_into(TcpWorld& world, tcp::acceptor& acceptor, Connected& connected) {
  const TcpEndpoint there{"127.0.0.1", acceptor.local_endpoint().port()};
  connected.emplace(
      co_await connect_link(world.runtime, world.group, there, sample_hello(), patient_options(), world.soon()));
  acceptor.close();
}

/// A listener that loses one lane and keeps silent on the other gets both anew, of another attempt.
asio::awaitable<void> try_anew_when_a_lane_is_lost(TcpWorld& world, Lane lost) {
  tcp::acceptor acceptor(world.context, {asio::ip::address_v4::loopback(), 0});
  Connected connected;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("connect", connect_into(world, acceptor, connected));
  std::vector<tcp::socket> lanes;
  std::vector<uint64_t> attempts;
  for (size_t i = 0; i < 2 * kLaneCount; ++i) {
    tcp::socket lane = co_await acceptor.async_accept(asio::use_awaitable);
    const HandshakeFrame frame = co_await read_handshake(lane);
    const auto hello = decode_hello(frame.header, frame.payload);
    REQUIRE(hello->lane == (i % 2 == 0 ? Lane::kControl : Lane::kData));
    attempts.push_back(hello->attempt);
    lanes.push_back(std::move(lane));
    if (i == 1) lanes[static_cast<size_t>(lost)].close();
  }
  REQUIRE(attempts[0] == attempts[1]);
  REQUIRE(attempts[1] != attempts[2]);
  REQUIRE(attempts[2] == attempts[3]);
  const auto welcome = encode_welcome();
  for (size_t i = 2; i < 4; ++i) co_await asio::async_write(lanes[i], asio::buffer(welcome), asio::use_awaitable);
  co_await tasks.join();
  REQUIRE(connected->has_value());
}

asio::awaitable<void> cancel_an_attempt(TcpWorld& world) {
  tcp::acceptor acceptor(world.context, {asio::ip::address_v4::loopback(), 0});
  Connected connected;
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("connect", connect_into(world, acceptor, connected));
  tcp::socket control = co_await acceptor.async_accept(asio::use_awaitable);
  tcp::socket data = co_await acceptor.async_accept(asio::use_awaitable);
  (void)co_await read_handshake(control);
  (void)co_await read_handshake(data);
  co_await async::sleep_for(world.runtime, 10ms);  // the sender waits for what is said on both
  tasks.cancel();
  co_await tasks.join();
  REQUIRE_FALSE(connected.has_value());
}

}  // namespace

TEST_CASE("TCP: lanes of abandoned attempts do not harm the current one") {
  using enum Lane;
  for (const Lanes& lanes :
       {Lanes{{1, kControl}, {2, kControl}, {2, kData}}, Lanes{{1, kData}, {2, kControl}, {2, kData}},
        Lanes{{2, kControl}, {1, kData}, {2, kData}}, Lanes{{2, kData}, {1, kControl}, {2, kControl}},
        Lanes{{3, kData}, {2, kData}, {1, kControl}, {2, kControl}}}) {
    TcpWorld world;
    world.run(pass_what_was_left_behind(world, lanes));
  }
}

TEST_CASE("TCP: half links without end are bounded") {
  TcpWorld world;
  world.run(forget_the_oldest_of_many(world));
}

TEST_CASE("TCP: a sender that loses one lane tries anew") {
  const Lane lost = GENERATE(Lane::kControl, Lane::kData);
  TcpWorld world;
  world.run(try_anew_when_a_lane_is_lost(world, lost));
}

TEST_CASE("TCP: a pending connect can be cancelled") {
  TcpWorld world;
  world.run(cancel_an_attempt(world));
}
