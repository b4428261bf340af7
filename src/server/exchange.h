#pragma once

#include <optional>
#include <string>

#include "async/runtime.h"
#include "server/http/connection.h"
#include "server/openai/error.h"
#include "server/response_sink.h"

namespace millrace::server {

/// One request and the way back to its client. Lives in the frame of Api::handle, on the server's executor.
struct Exchange {
  HttpRequest request;
  Connection& connection;
  RequestRecord record;
  HttpHeaders common_headers;                                 ///< that every response carries
  openai::ErrorDialect make_error = &openai::error_response;  ///< of the route

  /// Sends a whole response, with the common headers, and records its status.
  [[nodiscard]] asio::awaitable<void> send(HttpResponse response);
  /// Opens a stream of server-sent events; returns false when the client is gone.
  [[nodiscard]] asio::awaitable<bool> begin_events();
};

/// Sends a response to the client that waits for it. Lives as long as its exchange.
class ExchangeSink final : public ResponseSink {
 public:
  explicit ExchangeSink(Exchange& exchange) : exchange_(exchange) {}

  [[nodiscard]] RequestRecord& record() override { return exchange_.record; }
  [[nodiscard]] bool is_gone() const override { return exchange_.connection.peer_gone(); }
  [[nodiscard]] asio::awaitable<void> watch(std::function<void()> on_gone,
                                            std::function<void()> on_half_closed) override;
  [[nodiscard]] asio::awaitable<bool> write_events(std::string& events) override;
  [[nodiscard]] asio::awaitable<void> end_events() override;
  [[nodiscard]] asio::awaitable<void> send(HttpResponse response) override;
  [[nodiscard]] asio::awaitable<void> send_error(openai::ApiError error) override;
  void close_after_response() override { exchange_.connection.close_after_response(); }

 private:
  Exchange& exchange_;
  bool is_open_ = false;  ///< the client has the response's head
};

}  // namespace millrace::server
