#pragma once

#include <optional>
#include <string>

#include "async/runtime.h"
#include "server/http/connection.h"
#include "server/openai/error.h"

namespace millrace::server {

/// What became of one request, for the log and the metrics.
struct RequestRecord {
  std::string id;
  unsigned status = 200;
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  async::TimePoint begin{};
  std::optional<async::TimePoint> first_token;
};

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

}  // namespace millrace::server
