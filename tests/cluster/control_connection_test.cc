#include "cluster/control_connection.h"

#include <atomic>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <thread>

#include "async/real_runtime.h"

using namespace millrace;
using namespace millrace::cluster;
using namespace std::chrono_literals;
using asio::ip::tcp;

namespace {

/// One end of a control connection, with the thread that serves it and no other.
class End {
 public:
  explicit End(ControlTiming timing) : timing_(timing) {}
  ~End() {
    asio::post(thread_.context(), [this] {
      connection_->close("the test is over");
      tasks_.spawn("join", connection_->join());
    });
    thread_.join();
  }

  void start(tcp::socket& connected, std::function<void(bool)> on_quiet = {}) {
    tcp::socket socket(thread_.runtime().executor(), tcp::v4(), connected.release());
    connection_ = std::make_shared<ControlConnection>(thread_.runtime(), std::move(socket), timing_);
    connection_->on_quiet(std::move(on_quiet));
    asio::post(thread_.context(), [this] { connection_->start(); });
  }
  void send(const Message& message) {
    asio::post(thread_.context(), [this, message] { connection_->send(message); });
  }
  /// What comes next, or why nothing does.
  std::string receive() {
    std::promise<std::string> text;
    asio::post(thread_.context(), [&] { tasks_.spawn("receive", receive_into(text)); });
    return text.get_future().get();
  }
  /// Lets nothing else happen on the thread for `duration`.
  void hold_up(async::Duration duration) {
    asio::post(thread_.context(), [duration] { std::this_thread::sleep_for(duration); });
  }

 private:
  asio::awaitable<void> receive_into(std::promise<std::string>& text) {
    std::string found;
    try {
      const Message message = co_await connection_->receive();
      found = std::get<Stop>(message).reason;
    } catch (const ErrorException& failure) {
      found = failure.error().message;
    }
    text.set_value(found);
  }

  const ControlTiming timing_;
  async::IoThread thread_{"control"};
  async::TaskGroup tasks_{thread_.runtime()};
  std::shared_ptr<ControlConnection> connection_;
};

std::pair<tcp::socket, tcp::socket> connected_pair(asio::io_context& context) {
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  tcp::socket here(context);
  here.connect(acceptor.local_endpoint());
  return {std::move(here), acceptor.accept()};
}

}  // namespace

TEST_CASE("a delayed end reads pending bytes before it judges its peer") {
  asio::io_context context;
  auto [left, right] = connected_pair(context);
  End held(ControlTiming{});
  End other(ControlTiming{.silence_limit = 1h});
  held.start(left);
  other.start(right);
  other.send(Stop{RingEpoch(1), "first"});
  REQUIRE(held.receive() == "first");
  held.hold_up(ControlTiming{}.silence_limit + 500ms);
  other.send(Stop{RingEpoch(1), "second"});
  REQUIRE(held.receive() == "second");
}

TEST_CASE("a goodbye of anybody is fit for a log") {
  asio::io_context context;
  auto [left, right] = connected_pair(context);
  End end(ControlTiming{.silence_limit = 1h});
  End other(ControlTiming{.silence_limit = 1h});
  end.start(left);
  other.start(right);
  other.send(Goodbye{"over\n2026-01-01 error \x1b[31mforged" + std::string(5000, '.')});
  const std::string reason = end.receive();
  REQUIRE_THAT(reason, Catch::StartsWith("over?2026-01-01 error ?[31mforged..."));
  REQUIRE(reason.size() == 1024);
}

TEST_CASE("an end closes although its peer pings and reads nothing") {
  asio::io_context context;
  auto [left, right] = connected_pair(context);
  std::atomic<bool> over = false;
  std::thread peer([&over, &peers = right] {
    const std::vector<std::byte> ping = encode(Ping{});
    const auto length = static_cast<uint32_t>(ping.size());
    boost::system::error_code failure;
    while (!over && !failure) {
      asio::write(peers, std::array<asio::const_buffer, 2>{asio::buffer(&length, sizeof length), asio::buffer(ping)},
                  failure);
      std::this_thread::sleep_for(50ms);
    }
  });
  {
    End end(ControlTiming{});
    end.start(left);
    for (int i = 0; i < 64; ++i) end.send(Stop{RingEpoch(1), std::string(500'000, '.')});
  }  // closes, and waits until that has been done
  over = true;
  peer.join();
}

TEST_CASE("an end whose peer says nothing ends with how long that was") {
  asio::io_context context;
  auto [left, right] = connected_pair(context);
  End end(ControlTiming{});
  end.start(left);
  const std::string reason = end.receive();
  REQUIRE(reason.starts_with("silent for "));
}

TEST_CASE("a peer is known by the protocol it connected with") {
  asio::io_context context;
  async::RealRuntime runtime(context);
  tcp::acceptor acceptor(context);
  boost::system::error_code failure;
  acceptor.open(tcp::v6(), failure);
  if (!failure) acceptor.set_option(asio::ip::v6_only(false), failure);
  if (!failure) acceptor.bind(tcp::endpoint(tcp::v6(), 0), failure);
  if (failure) return;  // no IPv6 here
  acceptor.listen();
  const uint16_t port = acceptor.local_endpoint().port();
  for (const std::string host : {"127.0.0.1", "::1"}) {
    tcp::socket here(context);
    here.connect(tcp::endpoint(asio::ip::make_address(host), port));
    const ControlConnection connection(runtime, acceptor.accept(), ControlTiming{});
    REQUIRE(connection.peer_host() == host);
  }
}

TEST_CASE("a peer is reported when it falls silent and when it is heard") {
  asio::io_context context;
  auto [left, right] = connected_pair(context);
  std::atomic<int> reports = 0;
  std::atomic<bool> quiet = false;
  End end(ControlTiming{.quiet_limit = 200ms, .silence_limit = 24h});
  end.start(left, [&reports, &quiet](bool is_quiet) {
    quiet = is_quiet;
    ++reports;
  });
  while (!quiet) std::this_thread::sleep_for(1ms);
  const std::vector<std::byte> stop = encode(Stop{RingEpoch(1), "back"});
  const auto length = static_cast<uint32_t>(stop.size());
  asio::write(right, std::array<asio::const_buffer, 2>{asio::buffer(&length, sizeof length), asio::buffer(stop)});
  REQUIRE(end.receive() == "back");
  REQUIRE(reports >= 2);
}
