#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "async/runtime.h"
#include "server/http/http.h"
#include "server/http/lazy_timer.h"
#include "server/options.h"

namespace millrace::server {

/// One client's TCP connection: reads requests and writes responses under time-outs, with every buffer bounded. Used by
/// one session coroutine on the front's executor; a second coroutine may run `watch` at the same time.
class Connection {
 public:
  /// A request; or a response to send instead of one, after which nothing more can be read; or neither: the client is
  /// gone, or idle for too long, or the server is draining.
  struct Incoming {
    std::optional<HttpRequest> request;
    std::optional<HttpResponse> error_reply;
  };
  /// Looks at a request before its body is read; a response ends the connection without reading it.
  using HeadCheck = std::function<std::optional<HttpResponse>(const HttpRequest& head)>;

  Connection(async::Runtime& runtime, asio::ip::tcp::socket socket, const ServerOptions& options, BodyBudget& bodies);

  [[nodiscard]] asio::awaitable<Incoming> read_request(const HeadCheck& head_check);

  /// Writes return false when the client is gone or takes nothing for write_timeout.
  [[nodiscard]] asio::awaitable<bool> send(const HttpResponse& response, bool without_body, bool keep_alive,
                                           bool http11);
  [[nodiscard]] asio::awaitable<bool> begin_stream(const HttpResponse& head, bool keep_alive, bool http11);
  /// Sends `events` as one chunk and clears it.
  [[nodiscard]] asio::awaitable<bool> write_stream(std::string& events);
  [[nodiscard]] asio::awaitable<bool> end_stream();
  /// Closes the sending side and waits a little for the client to close its own, so that it can read what was sent.
  [[nodiscard]] asio::awaitable<void> linger();

  /// Runs while a request is served: keeps what the client pipelines, and calls `on_gone` when it hangs up.
  [[nodiscard]] asio::awaitable<void> watch(std::function<void()> on_gone);
  [[nodiscard]] bool peer_gone() const { return peer_gone_; }

  /// Ends the wait for a request, or for the rest of one, which is refused if its head is there; a connection that
  /// serves a request goes on, and tells its client that it will close.
  void stop_reading();

 private:
  enum class ReadOutcome { kBytes, kClosed, kTimeout };

  asio::awaitable<Incoming> parse_request(const HeadCheck& head_check);
  /// What a request is told whose body, or the rest of it, would be too much beside those of others.
  [[nodiscard]] HttpResponse body_budget_error() const;
  asio::awaitable<ReadOutcome> wait_for_first_byte();
  asio::awaitable<ReadOutcome> fill();
  /// What a request that takes too long is told.
  [[nodiscard]] std::string timeout_message(bool in_body) const;
  /// One read into the end of buffer_.
  boost::system::error_code read_available();
  asio::awaitable<bool> write_all(std::string_view bytes);

  asio::ip::tcp::socket socket_;
  const ServerOptions& options_;
  BodyBudget& bodies_;
  LazyTimer deadline_;
  std::string buffer_;  ///< read and not yet parsed: at most max_pipelined_bytes, or one read's worth of a body
  std::string frame_;   ///< the stream chunk being written
  bool timed_out_ = false;
  bool reading_ = false;
  bool stopping_ = false;
  bool peer_gone_ = false;
  bool chunked_ = false;
};

}  // namespace millrace::server
