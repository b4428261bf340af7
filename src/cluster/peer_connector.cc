#include "cluster/peer_connector.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "async/deadline.h"

namespace millrace::cluster {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using boost::system::error_code;

constexpr async::Duration kConnectTimeout = 5s;
/// Delay until on_wait learns what a try waits for.
constexpr async::Duration kFirstWait = 1s;
/// Interval between looks at a lookup under way, whose thread cannot wake this one.
constexpr async::Duration kLookupInterval = 10ms;
constexpr const char* kNoAnswer = "no answer";

Error stopped() {
  return {ErrorCode::kAborted, "the process is stopping"};
}

}  // namespace

PeerConnector::PeerConnector(async::Runtime& runtime, const comm::TcpEndpoint& peer,
                             std::function<void(const std::string& what)> on_wait)
    : runtime_(runtime), on_wait_(std::move(on_wait)), name_(peer.host, peer.port), stop_signal_(runtime) {}

void PeerConnector::stop() {
  stopping_ = true;
  error_code ignored;
  if (connecting_ != nullptr) connecting_->close(ignored);
  stop_signal_.notify_all();
}

/// Returns the peer's addresses, or why there are none yet. A later call gets the answer of a slow resolver.
asio::awaitable<Result<std::vector<tcp::endpoint>>> PeerConnector::look_up() {
  const async::TimePoint begin = runtime_.now();
  auto found = name_.wait_for(0ms);
  while (found.has_error() && found.error().code == ErrorCode::kTimeout && !stopping_ &&
         runtime_.now() < begin + kConnectTimeout) {
    if (runtime_.now() >= begin + kFirstWait) on_wait_(found.error().message);
    (void)co_await stop_signal_.wait_until(runtime_.now() + kLookupInterval);
    found = name_.wait_for(0ms);
  }
  if (found.has_error()) co_return found.error();
  std::vector<tcp::endpoint> endpoints;
  for (const async::SocketAddress& address : *found) endpoints.push_back(address.endpoint());
  co_return endpoints;
}

asio::awaitable<Result<tcp::socket>> PeerConnector::connect() {
  if (stopping_) co_return stopped();
  auto endpoints = co_await look_up();
  if (stopping_) co_return stopped();
  if (endpoints.has_error()) co_return endpoints.error();
  const auto first = static_cast<std::ptrdiff_t>(tries_++ % endpoints->size());
  std::ranges::rotate(*endpoints, endpoints->begin() + first);
  tcp::socket socket(runtime_.executor());
  const async::Deadline first_wait(runtime_, runtime_.now() + kFirstWait, [this] { on_wait_(kNoAnswer); });
  const async::Deadline deadline(runtime_, runtime_.now() + kConnectTimeout, [&socket] {
    error_code ignored;
    socket.close(ignored);
  });
  error_code failure;
  connecting_ = &socket;
  co_await asio::async_connect(socket, *endpoints, asio::redirect_error(asio::use_awaitable, failure));
  connecting_ = nullptr;
  if (stopping_) co_return stopped();
  if (deadline.passed()) co_return Error{ErrorCode::kTimeout, kNoAnswer};
  if (failure) co_return Error{ErrorCode::kUnavailable, failure.message()};
  // With nobody listening at a port that the system gives to clients, a socket can reach itself there.
  if (socket.local_endpoint(failure) == socket.remote_endpoint(failure)) {
    co_return Error{ErrorCode::kUnavailable, error_code(asio::error::connection_refused).message()};
  }
  co_return std::move(socket);
}

}  // namespace millrace::cluster
