#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "async/runtime.h"
#include "load/options.h"

namespace millrace::load {

enum class FailureKind {
  kNone,
  kConnect,     ///< no connection: refused, unreachable, no address
  kTimeout,     ///< the request's time was up
  kHttpStatus,  ///< a status other than 200
  kErrorEvent,  ///< an error inside the stream
  kCut,         ///< the connection ended before the response did
  kBadData,     ///< not HTTP, not an event stream, not the JSON that was expected
  kCancelled,   ///< this side gave up
};
[[nodiscard]] std::string_view to_string(FailureKind kind);

struct Failure {
  FailureKind kind = FailureKind::kNone;
  std::string message;
  explicit operator bool() const { return kind != FailureKind::kNone; }
};

struct HttpRequest {
  std::string_view method = "POST";
  std::string path;  ///< from /v1 on
  std::string body;
};

/// `sent_at` is taken on an open connection, right before the first byte is written.
struct HttpReply {
  unsigned status = 0;
  std::string body;  ///< of a reply other than 200, up to 64 KiB; a 200 goes to the handler
  async::TimePoint sent_at;
  Failure failure;
};

/// Hears the body of a 200 reply piece by piece, with the time at which the piece was read.
using BodyHandler = std::function<void(std::string_view bytes, async::TimePoint at)>;

/// Keep-alive connections to one server. Used on the runtime's executor only; must outlive the requests in flight.
class HttpClient {
 public:
  HttpClient(async::Runtime& runtime, Target target, std::string api_key, async::Duration timeout);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Looks the host up and opens connections until `count` are idle.
  [[nodiscard]] asio::awaitable<Failure> open(size_t count);
  /// One request on an idle connection, or on a new one. A kept connection that the server has closed in the meantime
  /// is replaced once.
  [[nodiscard]] asio::awaitable<HttpReply> send(HttpRequest request, BodyHandler on_body);
  [[nodiscard]] size_t idle_count() const { return idle_.size(); }

 private:
  struct Connection;
  struct Exchange;
  [[nodiscard]] asio::awaitable<Failure> connect(Connection& connection);
  [[nodiscard]] asio::awaitable<void> read_reply(Connection& connection, Exchange& exchange, BodyHandler& on_body);
  [[nodiscard]] std::string head_of(const HttpRequest& request) const;
  [[nodiscard]] std::unique_ptr<Connection> take_idle();
  [[nodiscard]] Failure failure_of(const boost::system::error_code& error, const Connection& connection) const;

  async::Runtime& runtime_;
  const Target target_;
  const std::string api_key_;
  const async::Duration timeout_;
  std::vector<asio::ip::tcp::endpoint> addresses_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace millrace::load
