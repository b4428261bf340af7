#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "async/runtime.h"
#include "server/http/http.h"
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

/// The destination of a ResponseTask's response: a client that waits, or nothing yet. Used on the server's executor
/// only.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;

  [[nodiscard]] virtual RequestRecord& record() = 0;
  /// Returns whether the client has gone.
  [[nodiscard]] virtual bool is_gone() const = 0;
  /// Runs while the response is generated. Calls `on_gone` when the client has gone. Calls `on_half_closed` when one
  /// that has part of the response sends nothing more: further events show whether it has gone.
  [[nodiscard]] virtual asio::awaitable<void> watch(std::function<void()> on_gone,
                                                    std::function<void()> on_half_closed) = 0;
  /// Sends events of a stream, which the first ones open, and clears them. Returns false when the client has gone.
  [[nodiscard]] virtual asio::awaitable<bool> write_events(std::string& events) = 0;
  [[nodiscard]] virtual asio::awaitable<void> end_events() = 0;
  /// Sends a whole response.
  [[nodiscard]] virtual asio::awaitable<void> send(HttpResponse response) = 0;
  /// Sends an error in place of a response.
  [[nodiscard]] virtual asio::awaitable<void> send_error(openai::ApiError error) = 0;
  virtual void close_after_response() = 0;
};

}  // namespace millrace::server
