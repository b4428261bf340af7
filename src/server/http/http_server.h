#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <future>
#include <list>
#include <stop_token>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/result.h"
#include "server/http/connection.h"
#include "server/http/http_usage.h"

namespace millrace::server {

/// Accepts connections, reads requests and hands them to an HttpHandler: one session coroutine per connection. Owned by
/// the Server, which calls start and stop from outside `thread`, and joins the thread before it destroys this.
class HttpServer {
 public:
  /// All arguments outlive the HttpServer.
  HttpServer(async::IoThread& thread, const HttpOptions& options, HttpUsage& usage, HttpHandler& handler);

  /// Listens and serves from now on; returns the port. Called once. Errors: kUnavailable (the address cannot be bound),
  /// kInvalidArgument (the host cannot be looked up), kAborted (`stop` was requested during the lookup).
  [[nodiscard]] Result<uint16_t> start(const std::stop_token& stop);
  /// Stops accepting, lets running requests end for `drain_timeout`, then has the handler end them, then cuts them off.
  /// Blocks until no session is left. Does nothing unless start succeeded.
  void stop(std::chrono::milliseconds drain_timeout);

 private:
  using tcp = asio::ip::tcp;

  Result<tcp::endpoint> resolve(const std::stop_token& stop);
  asio::awaitable<void> accept_connections();
  asio::awaitable<void> serve(tcp::socket socket);
  asio::awaitable<void> refuse(HttpResponse response, Connection& connection);
  asio::awaitable<void> shut_down(std::chrono::milliseconds drain_timeout, std::promise<void>& done);
  void reject(tcp::socket socket);

  async::IoThread& thread_;
  const HttpOptions& options_;
  HttpUsage& usage_;
  HttpHandler& handler_;
  tcp::acceptor acceptor_{thread_.context()};
  async::TaskGroup control_{thread_.runtime()};   ///< the acceptor and the shutdown
  async::TaskGroup sessions_{thread_.runtime()};  ///< one session per connection
  std::list<Connection*> connections_;
  bool started_ = false;
  bool draining_ = false;
};

}  // namespace millrace::server
