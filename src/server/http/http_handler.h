#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <optional>

#include "async/runtime.h"
#include "server/http/http.h"

namespace millrace::server {

class Connection;

/// The application that HttpServer serves, which decides on every request and writes every response. Called
/// on the server's executor only; outlives the HttpServer.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  /// Returns a response that refuses the request on its header section alone, or nothing. Its body may not have been
  /// read yet; if it has not, the connection ends with that response.
  [[nodiscard]] virtual std::optional<HttpResponse> check_head(const HttpRequest& head) = 0;
  /// Answers one request on `connection`.
  [[nodiscard]] virtual asio::awaitable<void> handle(HttpRequest request, Connection& connection) = 0;
  /// Returns the response that tells the client of `error`, which was found before a request was complete. `head` is
  /// null where the header section is not complete either.
  [[nodiscard]] virtual HttpResponse make_error(const HttpError& error, const HttpRequest* head) = 0;
  /// Completes and records the response to a request that `handle` never sees.
  virtual void on_refused_request(HttpResponse& response) = 0;
  /// Completes and records the response to a connection beyond the limit.
  virtual void on_refused_connection(HttpResponse& response) = 0;
  /// Ends the requests that still run: the server has stopped and waited for `waited` already.
  virtual void end_requests(std::chrono::milliseconds waited) = 0;
  /// Ends the work that no connection waits for. It may go on until `deadline`.
  [[nodiscard]] virtual asio::awaitable<void> finish_background(async::TimePoint /*deadline*/) { co_return; }
};

}  // namespace millrace::server
