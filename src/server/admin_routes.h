#pragma once

#include "async/wait_list.h"
#include "server/access_policy.h"
#include "server/exchange.h"
#include "server/generation_routes.h"
#include "server/openai/request.h"
#include "server/pooling_routes.h"
#include "server/router.h"

namespace millrace::server {

/// The routes that change the server's state: abort requests, flush the cache, pause and continue generation, drain and
/// restart a ring. Owned by Api; its executor only.
class AdminRoutes {
 public:
  /// All arguments outlive the object.
  AdminRoutes(async::Runtime& runtime, sched::Engine& engine, const AccessPolicy& access, GenerationRoutes& generation,
              PoolingRoutes& pooling)
      : runtime_(runtime), engine_(engine), access_(access), generation_(generation), pooling_(pooling) {}

  void add_to(Router& router);

 private:
  [[nodiscard]] HttpResponse abort(const HttpRequest& request);
  [[nodiscard]] HttpResponse pause(const HttpRequest& request);
  [[nodiscard]] HttpResponse resume(const HttpRequest& request);
  [[nodiscard]] HttpResponse drain(const HttpRequest& request);
  [[nodiscard]] HttpResponse undrain(const HttpRequest& request);
  [[nodiscard]] HttpResponse restart(const HttpRequest& request);
  /// Returns the ring that an administrator's request must name, or the refusal.
  [[nodiscard]] openai::ApiResult<size_t> named_ring(const openai::ApiResult<openai::RingRequest>& parsed);
  /// Flushes the cache; returns nothing when the client has gone before that was possible.
  [[nodiscard]] asio::awaitable<std::optional<HttpResponse>> flush(Exchange& exchange);
  [[nodiscard]] asio::awaitable<void> run_flush(const openai::FlushRequest& wanted,
                                                std::optional<Result<void>>& outcome, async::WaitList& ended);
  [[nodiscard]] HttpResponse not_ready() const;

  async::Runtime& runtime_;
  sched::Engine& engine_;
  const AccessPolicy& access_;
  GenerationRoutes& generation_;
  PoolingRoutes& pooling_;
};

}  // namespace millrace::server
