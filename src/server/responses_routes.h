#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/background_responses.h"
#include "server/generation_routes.h"
#include "server/responses/store.h"
#include "server/responses_input.h"
#include "server/router.h"

namespace millrace::server {

/// The routes of /v1/responses: generate a response, and fetch, follow, cancel or delete one. Owned by Api; its
/// executor only.
class ResponsesRoutes {
 public:
  /// All arguments outlive the object.
  ResponsesRoutes(async::Runtime& runtime, const ServerOptions& options, const Service& service,
                  const InputProcessor& input_processor, RandomSource& ids, GenerationRoutes& generation)
      : generation_(generation),
        store_(options.response_store_bytes),
        input_(options, service, input_processor, ids, store_),
        background_(runtime, generation) {}

  void add_to(Router& router);
  /// Waits for the responses in the background until `deadline`, and then ends them.
  [[nodiscard]] asio::awaitable<void> finish(async::TimePoint deadline) { return background_.finish(deadline); }

 private:
  using Reply = std::optional<HttpResponse>;

  void add_stored_to(Router& router);
  [[nodiscard]] asio::awaitable<Reply> create(Exchange& exchange, responses::Compaction compaction);
  [[nodiscard]] asio::awaitable<Reply> retrieve(Exchange& exchange);
  [[nodiscard]] asio::awaitable<Reply> cancel(Exchange& exchange);
  [[nodiscard]] HttpResponse remove(const HttpRequest& request);
  [[nodiscard]] HttpResponse list_input(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse count_tokens(const HttpRequest& request) const;
  /// Sends the events of a response in the background from `next` on, as they come.
  [[nodiscard]] asio::awaitable<void> follow(Exchange& exchange, BackgroundResponses::Pointer response, size_t next);
  /// Sends the stored events from `next` on.
  [[nodiscard]] asio::awaitable<void> replay(Exchange& exchange, responses::ResponseStore::Pointer response,
                                             size_t next);

  GenerationRoutes& generation_;
  responses::ResponseStore store_;
  ResponsesInput input_;
  BackgroundResponses background_;
};

}  // namespace millrace::server
