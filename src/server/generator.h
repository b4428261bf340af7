#pragma once

#include <string>
#include <unordered_map>

#include "async/runtime.h"
#include "server/connection.h"
#include "server/metrics.h"
#include "server/prepare.h"

namespace millrace::server {

class Generation;

/// What became of one HTTP request, for the log and the metrics.
struct RequestRecord {
  std::string id;
  unsigned status = 200;
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  async::TimePoint begin{};
  std::optional<async::TimePoint> first_token;
  bool keep_alive = true;   ///< in: the client's wish; out: whether the connection can go on
  bool http11 = true;
};

/// Runs generations: from a spec to the response on a connection, streamed or whole. Knows those in flight, so that
/// they can be aborted. Owned by the front, its executor only.
class Generator {
 public:
  /// Runs work on another thread and waits for it, also when cancelled.
  using Elsewhere = std::function<asio::awaitable<void>(std::function<void()>)>;

  Generator(async::Runtime& runtime, const ServerOptions& options, const Service& service, Metrics& metrics,
            Elsewhere elsewhere)
      : runtime_(runtime), options_(options), service_(service), metrics_(metrics), elsewhere_(std::move(elsewhere)) {}

  /// Headers that every response carries.
  using Decorator = std::function<void(HttpResponse&)>;

  /// Answers on `connection`. When the client goes away, or the coroutine is cancelled, the engine's requests are
  /// aborted before this returns.
  [[nodiscard]] asio::awaitable<void> serve(GenerationSpec spec, Connection& connection, RequestRecord& record,
                                            const Decorator& decorate);

  [[nodiscard]] size_t in_flight() const { return active_.size(); }
  [[nodiscard]] bool is_active(const std::string& id) const { return active_.contains(id); }
  /// Asks the engine to abort the request with this response id or request_id; the count of aborted sequences.
  size_t abort(const std::string& id);
  size_t abort_all();
  /// From now on every generation ends with an error: the server stops.
  void refuse_all();

 private:
  friend class Generation;

  async::Runtime& runtime_;
  const ServerOptions& options_;
  const Service& service_;
  Metrics& metrics_;
  const Elsewhere elsewhere_;
  std::unordered_map<std::string, Generation*> active_;
  bool refusing_ = false;
};

}  // namespace millrace::server
