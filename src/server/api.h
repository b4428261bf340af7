#pragma once

#include <optional>
#include <string>

#include "server/grammar_cache.h"
#include "server/http/http_handler.h"
#include "server/http/http_usage.h"
#include "server/input_processor.h"
#include "server/observe/server_metrics.h"
#include "server/access_policy.h"
#include "server/admin_routes.h"
#include "server/generation_routes.h"
#include "server/message_routes.h"
#include "server/pooling_routes.h"
#include "server/responses_routes.h"
#include "server/ring_routes.h"
#include "server/router.h"
#include "server/status_routes.h"
#include "server/utility_routes.h"
#include "server/worker.h"

namespace millrace::server {

/// The HTTP API: finds the route of a request, checks that the client may call it, has it answered, and records what
/// became of it. Owned by the Server; its executor only.
class Api final : public HttpHandler {
 public:
  /// All arguments outlive the object.
  Api(async::Runtime& runtime, const ServerOptions& options, const Service& service, const HttpUsage& usage);

  [[nodiscard]] const Router& router() const { return router_; }

  [[nodiscard]] std::optional<HttpResponse> check_head(const HttpRequest& head) override;
  [[nodiscard]] asio::awaitable<void> handle(HttpRequest request, Connection& connection) override;
  [[nodiscard]] HttpResponse make_error(const HttpError& error, const HttpRequest* head) override;
  void on_refused_request(HttpResponse& response) override;
  void on_refused_connection(HttpResponse& response) override;
  void end_requests(std::chrono::milliseconds waited) override;
  [[nodiscard]] asio::awaitable<void> finish_background(async::TimePoint deadline) override {
    return responses_.finish(deadline);
  }

 private:
  [[nodiscard]] ResponseContext response_context(const Service& service);
  /// Returns the refusal of a request that its head alone justifies: no such route or method, no access, no JSON.
  [[nodiscard]] std::optional<openai::ApiError> check(const HttpRequest& head, const RouteMatch& match) const;
  /// Calls the handler of a route, on the worker if it is heavy.
  [[nodiscard]] asio::awaitable<std::optional<HttpResponse>> answer(Exchange& exchange, const RouteMatch& match);
  /// Charges `bytes` of the response in place of the body: it may be larger, and stays until the client has taken it.
  /// Without room for them the response becomes a 503.
  static void charge_response_body(Exchange& exchange, HttpResponse& response, size_t bytes);
  [[nodiscard]] HttpHeaders common_headers(const std::string& request_id) const;
  /// Counts the request, and logs it.
  void finish(const RequestRecord& record, std::string_view route, bool is_probe);

  async::Runtime& runtime_;
  const ServerOptions& options_;
  ServerMetrics metrics_;
  RandomSource request_ids_;
  RandomSource seeds_;
  GrammarCache grammar_cache_;
  InputProcessor input_processor_;
  Worker worker_;
  AccessPolicy access_;
  Router router_;
  GenerationRoutes generation_;
  PoolingRoutes pooling_;
  MessageRoutes messages_;
  ResponsesRoutes responses_;
  UtilityRoutes utility_;
  AdminRoutes admin_;
  RingRoutes ring_;
  StatusRoutes status_;
};

}  // namespace millrace::server
