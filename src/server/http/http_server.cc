#include "server/http/http_server.h"

#include <fmt/format.h>
#include <netdb.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "async/name_lookup.h"
#include "base/check.h"
#include "base/log.h"

namespace millrace::server {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

/// A lookup of the host that takes this long is logged, and again at each reminder.
constexpr milliseconds kFirstWarning{1000};
constexpr milliseconds kReminder{5000};

Error cannot_listen(const HttpOptions& options, std::string_view step, const error_code& failure) {
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  return make_error(ErrorCode::kUnavailable, "cannot listen on {}:{}: {}: {}",
                    is_ipv6 ? '[' + options.host + ']' : options.host, options.port, step, failure.message());
}

}  // namespace

HttpServer::HttpServer(async::IoThread& thread, const HttpOptions& options, HttpUsage& usage, HttpHandler& handler)
    : thread_(thread), options_(options), usage_(usage), handler_(handler) {}

Result<asio::ip::tcp::endpoint> HttpServer::resolve(const std::stop_token& stop) {
  // AI_ADDRCONFIG: localhost is not ::1 on a host without another IPv6 address, where its clients use IPv4.
  async::NameLookup name(options_.host, options_.port, AI_ADDRCONFIG);
  auto found = name.wait_for(kFirstWarning, stop);
  while (found.has_error() && found.error().code == ErrorCode::kTimeout) {
    log::warn("--host: {}", found.error().message);
    found = name.wait_for(kReminder, stop);
  }
  if (found.has_error()) {
    const bool aborted = found.error().code == ErrorCode::kAborted;
    return make_error(aborted ? ErrorCode::kAborted : ErrorCode::kInvalidArgument, "--host: {}", found.error().message);
  }
  return found->front().endpoint();
}

Result<uint16_t> HttpServer::start(const std::stop_token& stop) {
  CHECK(!started_, "an HTTP server is started once");
  auto endpoint = resolve(stop);
  if (endpoint.has_error()) return endpoint.error();
  error_code failure;
  acceptor_.open(endpoint->protocol(), failure);
  if (failure) return cannot_listen(options_, "open", failure);
  acceptor_.set_option(tcp::acceptor::reuse_address(true), failure);
  acceptor_.bind(*endpoint, failure);
  if (failure) return cannot_listen(options_, "bind", failure);
  acceptor_.listen(asio::socket_base::max_listen_connections, failure);
  if (failure) return cannot_listen(options_, "listen", failure);
  const uint16_t port = acceptor_.local_endpoint().port();
  started_ = true;
  asio::post(thread_.context(), [this] { control_.spawn("acceptor", accept_connections()); });
  return port;
}

asio::awaitable<void> HttpServer::accept_connections() {
  while (!draining_) {
    auto [failure, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
    if (draining_ || failure == asio::error::operation_aborted) break;
    if (failure) {
      // Out of descriptors or memory: the clients keep waiting in the backlog.
      log::warn("accepting a connection failed: {}", failure.message());
      co_await async::sleep_for(thread_.runtime(), milliseconds(100));
      continue;
    }
    if (sessions_.size() >= options_.max_connections) {
      reject(std::move(socket));
      continue;
    }
    sessions_.spawn("session", serve(std::move(socket)));
  }
}

void HttpServer::reject(tcp::socket socket) {
  HttpResponse response = handler_.make_error(
      {503, fmt::format("{} connections are open already (--max-connections)", sessions_.size())}, nullptr);
  handler_.on_refused_connection(response);
  Connection(thread_.runtime(), std::move(socket), options_, usage_.bodies).send_without_waiting(response);
}

asio::awaitable<void> HttpServer::refuse(HttpResponse response, Connection& connection) {
  handler_.on_refused_request(response);
  const bool sent = co_await connection.send(response);
  if (sent) co_await connection.linger();
}

asio::awaitable<void> HttpServer::serve(tcp::socket socket) {
  Connection connection(thread_.runtime(), std::move(socket), options_, usage_.bodies);
  const auto position = connections_.insert(connections_.end(), &connection);
  usage_.connections = connections_.size();
  std::exception_ptr failure;
  try {
    while (!draining_) {
      Connection::Incoming incoming = co_await connection.read_request(handler_);
      if (!incoming.request) {
        if (incoming.refusal) co_await refuse(std::move(*incoming.refusal), connection);
        break;
      }
      co_await handler_.handle(std::move(*incoming.request), connection);
      if (!connection.keeps_alive()) break;
    }
  } catch (...) {
    failure = std::current_exception();
  }
  connections_.erase(position);
  usage_.connections = connections_.size();
  if (failure) std::rethrow_exception(failure);
}

void HttpServer::stop(milliseconds drain_timeout) {
  if (!started_) return;
  std::promise<void> done;
  asio::post(thread_.context(),
             [this, drain_timeout, &done] { control_.spawn("shutdown", shut_down(drain_timeout, done)); });
  done.get_future().wait();
}

asio::awaitable<void> HttpServer::shut_down(milliseconds drain_timeout, std::promise<void>& done) {
  draining_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  for (Connection* connection : connections_) connection->stop_reading();
  sessions_.close();
  const async::TimePoint deadline = thread_.runtime().now() + drain_timeout;
  bool ended = co_await sessions_.join_until(deadline);
  if (!ended) {
    handler_.end_requests(drain_timeout);
    ended = co_await sessions_.join_until(thread_.runtime().now() + std::chrono::seconds(1));
  }
  while (!ended) {
    // A session that waited with cancellation disabled has not seen the last cancellation: repeat it.
    sessions_.cancel();
    ended = co_await sessions_.join_until(thread_.runtime().now() + milliseconds(100));
  }
  co_await handler_.finish_background(deadline);
  done.set_value();
}

}  // namespace millrace::server
