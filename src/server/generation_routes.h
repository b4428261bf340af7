#pragma once

#include <functional>
#include <optional>
#include <string>

#include "server/active_tasks.h"
#include "server/input_processor.h"
#include "server/response_context.h"
#include "server/router.h"

namespace millrace::server {

struct Exchange;
class ResponseSink;
class ResponseTask;

/// The routes of completions and chat completions, and the way of every route that generates. Knows the requests in
/// flight, so that they can be counted and aborted. Owned by Api; its executor only.
class GenerationRoutes {
 public:
  /// All arguments outlive the object.
  GenerationRoutes(const ServerOptions& options, const InputProcessor& input_processor, RandomSource& request_ids,
                   ResponseContext context);

  using Spec = openai::ApiResult<GenerationSpec>;
  /// Parses a request and prepares its generation; for large bodies on the worker's thread.
  using Prepare = std::function<Spec(const HttpRequest&)>;

  void add_to(Router& router);
  /// Prepares the request, frees its body, and serves it; returns the response when it is refused before that.
  [[nodiscard]] asio::awaitable<std::optional<HttpResponse>> generate(Exchange& exchange, Prepare prepare);

  /// Prepares the request and frees its body. The response has an id that no other in flight has.
  [[nodiscard]] asio::awaitable<Spec> prepare(Exchange& exchange, Prepare prepare);
  /// Runs a ResponseTask. When the sink is gone, or the coroutine is cancelled, the engine's requests are aborted
  /// before this returns.
  [[nodiscard]] asio::awaitable<void> serve(GenerationSpec spec, ResponseSink& sink);

  [[nodiscard]] size_t in_flight() const { return active_.size(); }
  /// Aborts the request with this response id or request_id at the engine; returns the count of aborted sequences.
  size_t abort(const std::string& id);
  size_t abort_all();
  /// Ends every request with an error, from now on: the server stops.
  void reject_all();

 private:
  [[nodiscard]] Spec prepare_completion(const HttpRequest& request) const;
  [[nodiscard]] Spec prepare_chat(const HttpRequest& request) const;

  const InputProcessor& input_processor_;
  ResponseContext context_;
  ActiveTasks<ResponseTask> active_;
};

}  // namespace millrace::server
