#include "server/server.h"

#include <netdb.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>
#include <list>

#include "async/name_lookup.h"
#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/check.h"
#include "base/log.h"
#include "server/api.h"
#include "server/http/connection.h"

namespace millrace::server {
namespace {

using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

/// While the name to listen at is looked up, the log says so after so long, then so often.
constexpr milliseconds kFirstWord{1000};
constexpr milliseconds kReminder{5000};

Error cannot_listen(const ServerOptions& options, std::string_view what, const error_code& failure) {
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  return make_error(ErrorCode::kUnavailable, "cannot listen on {}:{}: {}: {}",
                    is_ipv6 ? '[' + options.host + ']' : options.host, options.port, what, failure.message());
}

}  // namespace

/// Everything that lives on the server's thread. Tasks: the acceptor and the shutdown in control_, one session per
/// connection in sessions_.
class Server::Front {
 public:
  Front(ServerOptions options, Service service)
      : options_(std::move(options)), service_(std::move(service)), api_(runtime(), options_, service_, bodies_) {
    CHECK(service_.engine != nullptr && service_.tokenizer != nullptr, "a service needs an engine and a tokenizer");
  }

  Result<uint16_t> start(const std::stop_token& stop);
  void stop(milliseconds drain_timeout);

 private:
  async::Runtime& runtime() { return thread_.runtime(); }
  Result<tcp::endpoint> resolve(const std::stop_token& stop);
  asio::awaitable<void> accept_connections();
  asio::awaitable<void> serve(tcp::socket socket);
  asio::awaitable<void> shut_down(milliseconds drain_timeout, std::promise<void>& done);
  void reject_connection(tcp::socket socket);

  const ServerOptions options_;
  const Service service_;
  BodyBudget bodies_{options_.max_bodies_bytes};
  async::IoThread thread_{"http"};
  tcp::acceptor acceptor_{thread_.context()};
  async::TaskGroup control_{runtime()};
  async::TaskGroup sessions_{runtime()};
  std::list<Connection*> connections_;
  Api api_;
  bool started_ = false;
  bool stopped_ = false;
  bool draining_ = false;
};

Result<tcp::endpoint> Server::Front::resolve(const std::stop_token& stop) {
  // Of localhost the protocol that others come by: not ::1 where the host has no other address of IPv6.
  async::NameLookup name(options_.host, options_.port, AI_ADDRCONFIG);
  auto found = name.wait_for(kFirstWord, stop);
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

Result<uint16_t> Server::Front::start(const std::stop_token& stop) {
  CHECK(!started_, "a server is started once");
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

asio::awaitable<void> Server::Front::accept_connections() {
  while (!draining_) {
    auto [failure, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
    if (draining_ || failure == asio::error::operation_aborted) break;
    if (failure) {
      // Out of descriptors or memory: the clients keep waiting in the backlog.
      log::warn("accepting a connection failed: {}", failure.message());
      co_await async::sleep_for(runtime(), std::chrono::milliseconds(100));
      continue;
    }
    if (sessions_.size() >= options_.max_connections) {
      reject_connection(std::move(socket));
      continue;
    }
    sessions_.spawn("session", serve(std::move(socket)));
  }
}

void Server::Front::reject_connection(tcp::socket socket) {
  const HttpResponse response = api_.reject_connection(sessions_.size());
  std::string bytes;
  append_head(bytes, response, BodyFraming::kLength, response.body.size(), false, true);
  bytes += response.body;
  error_code ignored;  // best effort: the connection is not wanted
  socket.non_blocking(true, ignored);
  (void)socket.write_some(asio::buffer(bytes), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

asio::awaitable<void> Server::Front::serve(tcp::socket socket) {
  Connection connection(runtime(), std::move(socket), options_, bodies_);
  const auto place = connections_.insert(connections_.end(), &connection);
  api_.set_connection_count(connections_.size());
  const Connection::HeadCheck head_check = [this](const HttpRequest& head) { return api_.check_head(head); };
  std::exception_ptr failure;
  try {
    bool goes_on = true;
    while (goes_on && !draining_) {
      Connection::Incoming incoming = co_await connection.read_request(head_check);
      if (!incoming.request) {
        if (incoming.error_reply) co_await api_.refuse(std::move(*incoming.error_reply), connection);
        break;
      }
      goes_on = co_await api_.handle(std::move(*incoming.request), connection);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  connections_.erase(place);
  api_.set_connection_count(connections_.size());
  if (failure) std::rethrow_exception(failure);
}

void Server::Front::stop(milliseconds drain_timeout) {
  if (std::exchange(stopped_, true)) return;
  if (started_) {
    std::promise<void> done;
    asio::post(thread_.context(),
               [this, drain_timeout, &done] { control_.spawn("shutdown", shut_down(drain_timeout, done)); });
    done.get_future().wait();
  }
  thread_.join();
}

asio::awaitable<void> Server::Front::shut_down(milliseconds drain_timeout, std::promise<void>& done) {
  draining_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  for (Connection* connection : connections_) connection->stop_reading();
  sessions_.close();
  bool ended = co_await sessions_.join_until(runtime().now() + drain_timeout);
  if (!ended) {
    log::warn("{} requests are still running after {} ms: ending them", api_.in_flight(), drain_timeout.count());
    api_.reject_all();
    ended = co_await sessions_.join_until(runtime().now() + std::chrono::seconds(1));
  }
  while (!ended) {
    // A session that just then waited with cancellation disabled has not heard of it: say it again.
    sessions_.cancel();
    ended = co_await sessions_.join_until(runtime().now() + std::chrono::milliseconds(100));
  }
  done.set_value();
}

Server::Server(ServerOptions options, Service service)
    : front_(std::make_unique<Front>(std::move(options), std::move(service))) {}

Server::~Server() {
  front_->stop(milliseconds(0));
}

Result<uint16_t> Server::start(const std::stop_token& stop) {
  return front_->start(stop);
}

void Server::stop(milliseconds drain_timeout) {
  front_->stop(drain_timeout);
}

}  // namespace millrace::server
