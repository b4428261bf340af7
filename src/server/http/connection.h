#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "async/runtime.h"
#include "server/http/http.h"
#include "server/http/http_handler.h"
#include "server/http/http_options.h"
#include "server/http/lazy_timer.h"

namespace millrace::server {

enum class BodyFraming : uint8_t;

/// One client's TCP connection: reads requests and writes responses under time-outs, with every buffer bounded. Owned
/// by one session of HttpServer, on its executor; a second coroutine may run `watch` at the same time.
class Connection {
 public:
  /// A request; or a response to send instead, after which nothing more can be read; or neither: the client is gone, or
  /// idle for too long, or the server is draining.
  struct Incoming {
    std::optional<HttpRequest> request;
    std::optional<HttpResponse> refusal;
  };

  Connection(async::Runtime& runtime, asio::ip::tcp::socket socket, const HttpOptions& options, BodyBudget& bodies);

  /// Reads the next request; `handler` judges its header section and words the errors.
  [[nodiscard]] asio::awaitable<Incoming> read_request(HttpHandler& handler);

  /// Sends a whole response to the request that was read last; without its body if that is a HEAD, or for a 204.
  /// Returns false when the client is gone or takes nothing for `write_timeout`, as all writes do.
  [[nodiscard]] asio::awaitable<bool> send(const HttpResponse& response);
  /// Sends the head of a response whose body follows by write_stream.
  [[nodiscard]] asio::awaitable<bool> begin_stream(const HttpResponse& head);
  /// Sends `events` as one chunk, and clears it.
  [[nodiscard]] asio::awaitable<bool> write_stream(std::string& events);
  [[nodiscard]] asio::awaitable<bool> end_stream();
  /// Sends what the socket takes at once: for a connection that is not wanted.
  void send_without_waiting(const HttpResponse& response);
  /// Closes the sending side and waits a little for the client to close its own, so that it can read what was sent.
  [[nodiscard]] asio::awaitable<void> linger();

  /// Returns whether another request may follow: the client wants it, and every write has gone well.
  [[nodiscard]] bool keeps_alive() const { return keep_alive_ && !peer_gone_; }
  /// Ends the connection after the response that is sent next, or is being sent.
  void close_after_response() { keep_alive_ = false; }

  /// Runs while a request is served: keeps what the client pipelines, and calls `on_gone` when it hangs up. A client
  /// that ends only its sending side still gets its answer. Where a part of that is sent, `on_half_closed` should send
  /// more, which shows whether the client is still there.
  [[nodiscard]] asio::awaitable<void> watch(std::function<void()> on_gone, std::function<void()> on_half_closed = {});
  [[nodiscard]] bool peer_gone() const { return peer_gone_; }

  /// Ends the wait for a request, or for the rest of one, which is refused if its head is there. A connection that
  /// serves a request goes on, and tells its client that it will close.
  void stop_reading();

 private:
  enum class ReadOutcome { kBytes, kClosed, kTimeout };

  asio::awaitable<Incoming> parse_request(HttpHandler& handler);
  /// Returns the error for a request whose body would exceed the budget of all bodies.
  [[nodiscard]] HttpError body_budget_error() const;
  /// Returns the error for a request that takes too long to arrive.
  [[nodiscard]] HttpError timeout_error(bool in_body) const;
  asio::awaitable<ReadOutcome> wait_for_first_byte();
  asio::awaitable<ReadOutcome> fill();
  /// Reads once into the end of buffer_.
  boost::system::error_code read_available();
  /// Waits until the socket takes bytes again.
  asio::awaitable<bool> wait_for_room();
  /// Calls `write_some(failure)`, which returns whether all is written, as often as the socket takes bytes.
  template <class WriteSome>
  asio::awaitable<bool> write_all(WriteSome write_some);
  /// Makes the system find out whether a client that has ended its sending side has closed the connection. Returns the
  /// failure if it has.
  boost::system::error_code probe_half_closed();
  asio::awaitable<bool> write_bytes(asio::const_buffer bytes);
  asio::awaitable<bool> write_head(const HttpResponse& response, BodyFraming framing);

  asio::ip::tcp::socket socket_;
  const HttpOptions& options_;
  BodyBudget& bodies_;
  LazyTimer deadline_;
  std::string buffer_;  ///< read and not yet parsed: at most max_pipelined_bytes, or one read's worth of a body
  bool timed_out_ = false;
  bool reading_ = false;
  bool stopping_ = false;
  bool peer_gone_ = false;
  bool has_answered_ = false;  ///< bytes of the response have been written
  // What the request that was read last and its response allow.
  bool keep_alive_ = false;
  bool http11_ = true;
  bool is_head_ = false;
  bool chunked_ = false;
};

}  // namespace millrace::server
