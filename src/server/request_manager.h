#pragma once

#include <string>
#include <unordered_map>

#include "async/runtime.h"
#include "server/http/connection.h"
#include "server/observe/metrics.h"
#include "server/input_processor.h"

namespace millrace::server {

class ResponseTask;

/// What became of one HTTP request, for the log and the metrics.
struct RequestRecord {
  std::string id;
  unsigned status = 200;
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  async::TimePoint begin{};
  std::optional<async::TimePoint> first_token;
  bool keep_alive = true;  ///< in: the client's wish; out: whether the connection can go on
  bool http11 = true;
};

/// Runs generations: from a spec to the response on a connection, streamed or whole. Knows those in flight, so that
/// they can be aborted. Owned by the front, its executor only.
class RequestManager {
 public:
  /// Runs work on another thread and waits for it, also when cancelled.
  using WorkerRunner = std::function<asio::awaitable<void>(std::function<void()>)>;

  RequestManager(async::Runtime& runtime, const ServerOptions& options, const Service& service, Metrics& metrics,
                 WorkerRunner run_on_worker)
      : runtime_(runtime),
        options_(options),
        service_(service),
        metrics_(metrics),
        run_on_worker_(std::move(run_on_worker)) {}

  /// Headers that every response carries.
  using Decorator = std::function<void(HttpResponse&)>;

  /// Answers on `connection`. When the client goes away, or the coroutine is cancelled, the engine's requests are
  /// aborted before this returns.
  [[nodiscard]] asio::awaitable<void> serve(GenerationSpec spec, Connection& connection, RequestRecord& record,
                                            const Decorator& add_common_headers);

  [[nodiscard]] size_t in_flight() const { return active_.size(); }
  [[nodiscard]] bool is_active(const std::string& id) const { return active_.contains(id); }
  /// Asks the engine to abort the request with this response id or request_id; the count of aborted sequences.
  size_t abort(const std::string& id);
  size_t abort_all();
  /// From now on every generation ends with an error: the server stops.
  void reject_all();

 private:
  friend class ResponseTask;

  async::Runtime& runtime_;
  const ServerOptions& options_;
  const Service& service_;
  Metrics& metrics_;
  const WorkerRunner run_on_worker_;
  std::unordered_map<std::string, ResponseTask*> active_;
  bool refusing_ = false;
};

}  // namespace millrace::server
