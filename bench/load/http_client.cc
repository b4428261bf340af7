#include "load/http_client.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <utility>

namespace millrace::load {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

constexpr auto kOutcome = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBytes = 16 * 1024;
constexpr size_t kMaxErrorBody = 64 * 1024;

/// Runs `late` at a point of time unless it is destroyed before.
class Deadline {
 public:
  Deadline(async::Runtime& runtime, async::TimePoint when, std::function<void()> late)
      : runtime_(runtime), timer_(runtime.arm(when, std::move(late))) {}
  ~Deadline() { runtime_.disarm(timer_); }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  async::Runtime& runtime_;
  async::TimerId timer_;
};

}  // namespace

std::string_view to_string(FailureKind kind) {
  switch (kind) {
    case FailureKind::kNone: return "none";
    case FailureKind::kConnect: return "cannot connect";
    case FailureKind::kTimeout: return "timeout";
    case FailureKind::kHttpStatus: return "HTTP status";
    case FailureKind::kErrorEvent: return "error in the stream";
    case FailureKind::kCut: return "connection lost";
    case FailureKind::kBadData: return "bad data";
    case FailureKind::kCancelled: return "cancelled";
  }
  return "unknown";
}

struct HttpClient::Connection {
  explicit Connection(async::Runtime& runtime) : socket(runtime.executor()) {}
  asio::ip::tcp::socket socket;
  beast::flat_buffer buffer;
  bool reused = false;
  bool timed_out = false;
};

/// One request and its reply on one connection.
struct HttpClient::Exchange {
  HttpReply reply;
  bool keep_alive = false;
  bool got_bytes = false;  ///< the server has begun to answer
};

HttpClient::HttpClient(async::Runtime& runtime, Target target, std::string api_key, async::Duration timeout)
    : runtime_(runtime), target_(std::move(target)), api_key_(std::move(api_key)), timeout_(timeout) {}

HttpClient::~HttpClient() = default;

asio::awaitable<Failure> HttpClient::open(size_t count) {
  asio::ip::tcp::resolver resolver(runtime_.executor());
  const auto [error, found] = co_await resolver.async_resolve(target_.host, target_.port, kOutcome);
  if (error) {
    co_return Failure{FailureKind::kConnect,
                      fmt::format("cannot find {}:{}: {}", target_.host, target_.port, error.message())};
  }
  addresses_.clear();
  for (const auto& entry : found) addresses_.push_back(entry.endpoint());
  while (idle_.size() < count) {
    auto connection = std::make_unique<Connection>(runtime_);
    const Deadline deadline(runtime_, runtime_.now() + timeout_, [&held = *connection] {
      held.timed_out = true;
      error_code ignored;
      held.socket.close(ignored);
    });
    Failure failure = co_await connect(*connection);
    if (failure) co_return failure;
    idle_.push_back(std::move(connection));
  }
  co_return Failure{};
}

asio::awaitable<Failure> HttpClient::connect(Connection& connection) {
  const auto [error, endpoint] = co_await asio::async_connect(connection.socket, addresses_, kOutcome);
  if (connection.timed_out) {
    co_return Failure{FailureKind::kTimeout, fmt::format("no connection to {}:{}", target_.host, target_.port)};
  }
  if (error == asio::error::operation_aborted) co_return Failure{FailureKind::kCancelled, "cancelled"};
  if (error) {
    co_return Failure{FailureKind::kConnect,
                      fmt::format("cannot connect to {}:{}: {}", target_.host, target_.port, error.message())};
  }
  error_code ignored;
  connection.socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  co_return Failure{};
}

std::string HttpClient::head_of(const HttpRequest& request) const {
  const bool is_ipv6 = target_.host.find(':') != std::string::npos;
  std::string head =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}{}{}:{}\r\nUser-Agent: millrace-load\r\nAccept: */*\r\n", request.method,
                  target_.prefix, request.path, is_ipv6 ? "[" : "", target_.host, is_ipv6 ? "]" : "", target_.port);
  if (!api_key_.empty()) head += fmt::format("Authorization: Bearer {}\r\n", api_key_);
  if (!request.body.empty()) {
    head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", request.body.size());
  }
  head += "\r\n";
  return head;
}

std::unique_ptr<HttpClient::Connection> HttpClient::take_idle() {
  if (idle_.empty()) return std::make_unique<Connection>(runtime_);
  auto connection = std::move(idle_.back());
  idle_.pop_back();
  connection->reused = true;
  return connection;
}

Failure HttpClient::failure_of(const error_code& error, const Connection& connection) const {
  if (connection.timed_out) {
    return {FailureKind::kTimeout,
            fmt::format("no complete reply within {} s", std::chrono::duration<double>(timeout_).count())};
  }
  if (error == asio::error::operation_aborted) return {FailureKind::kCancelled, "cancelled"};
  return {FailureKind::kCut, fmt::format("the reply is incomplete: {}", error.message())};
}

asio::awaitable<HttpReply> HttpClient::send(HttpRequest request, BodyHandler on_body) {
  const std::string head = head_of(request);
  const async::TimePoint late_at = runtime_.now() + timeout_;
  for (;;) {
    auto connection = take_idle();
    const Deadline deadline(runtime_, late_at, [&held = *connection] {
      held.timed_out = true;
      error_code ignored;
      held.socket.close(ignored);
    });
    Exchange exchange;
    exchange.reply.sent_at = runtime_.now();
    if (!connection->reused) {
      exchange.reply.failure = co_await connect(*connection);
      if (exchange.reply.failure) co_return std::move(exchange.reply);
      exchange.reply.sent_at = runtime_.now();
    }
    const std::array<asio::const_buffer, 2> pieces = {asio::buffer(head), asio::buffer(request.body)};
    const auto [error, written] = co_await asio::async_write(connection->socket, pieces, kOutcome);
    if (error) {
      exchange.reply.failure = failure_of(error, *connection);
    } else {
      co_await read_reply(*connection, exchange, on_body);
    }
    const bool stale = connection->reused && !exchange.got_bytes && exchange.reply.failure.kind == FailureKind::kCut;
    if (stale) continue;
    if (exchange.keep_alive && !exchange.reply.failure) idle_.push_back(std::move(connection));
    co_return std::move(exchange.reply);
  }
}

asio::awaitable<void> HttpClient::read_reply(Connection& connection, Exchange& exchange, BodyHandler& on_body) {
  HttpReply& reply = exchange.reply;
  http::response_parser<http::string_body> parser;
  parser.eager(true);
  parser.body_limit(boost::none);
  connection.buffer.clear();
  while (!parser.is_done()) {
    const auto [error, count] =
        co_await connection.socket.async_read_some(connection.buffer.prepare(kReadBytes), kOutcome);
    const async::TimePoint at = runtime_.now();
    error_code parse_error;
    if (error) {
      if (error == asio::error::eof && parser.is_header_done()) parser.put_eof(parse_error);
      if (error == asio::error::eof && parser.is_done() && !parse_error) break;
      reply.failure = failure_of(error, connection);
      co_return;
    }
    exchange.got_bytes = true;
    connection.buffer.commit(count);
    // The parser may stop at a chunk's border although more bytes are there.
    while (connection.buffer.size() > 0 && !parser.is_done()) {
      const size_t used = parser.put(connection.buffer.data(), parse_error);
      connection.buffer.consume(used);
      if (parse_error || used == 0) break;
    }
    if (parse_error && parse_error != http::error::need_more) {
      reply.failure = {FailureKind::kBadData, fmt::format("not an HTTP response: {}", parse_error.message())};
      co_return;
    }
    if (!parser.is_header_done()) continue;
    reply.status = parser.get().result_int();
    std::string& body = parser.get().body();
    if (reply.status == 200) {
      if (!body.empty()) on_body(body, at);
    } else if (reply.body.size() < kMaxErrorBody) {
      reply.body += body;
    }
    body.clear();
  }
  exchange.keep_alive = parser.keep_alive() && connection.buffer.size() == 0;
}

}  // namespace millrace::load
