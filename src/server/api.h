#pragma once

#include <boost/asio/thread_pool.hpp>
#include <optional>
#include <string>

#include "async/wait_list.h"
#include "server/request_manager.h"
#include "server/observe/metrics.h"
#include "server/input_processor.h"
#include "server/http/router.h"

namespace millrace::server {

/// The HTTP API: from a request to its answer on a connection. Owned by the Server; its executor only. Work on large
/// bodies (parsing, rendering, tokenising) and on answers of many logprobs happens on a thread of its own, so that
/// running streams keep flowing.
class Api {
 public:
  Api(async::Runtime& runtime, const ServerOptions& options, const Service& service, const BodyBudget& bodies);
  ~Api();

  /// What can be refused from the head alone: unknown routes, wrong methods, missing authorisation.
  [[nodiscard]] std::optional<HttpResponse> check_head(const HttpRequest& head) const;
  /// Answers one request; true when the connection may carry another.
  [[nodiscard]] asio::awaitable<bool> handle(HttpRequest request, Connection& connection);
  /// What a connection beyond the limit is told, of which so many are open; counts it.
  [[nodiscard]] HttpResponse reject_connection(size_t connection_count);
  /// Sends what read_request gave instead of a request, and logs it.
  [[nodiscard]] asio::awaitable<void> refuse(HttpResponse response, Connection& connection);

  [[nodiscard]] size_t in_flight() const { return request_manager_.in_flight(); }
  void reject_all() { request_manager_.reject_all(); }
  void set_connection_count(size_t count) { connection_count_ = count; }

 private:
  using Prepared = openai::ApiResult<GenerationSpec>;

  /// The admin's key opens every route, and those of the admin are opened by no other where there is one.
  [[nodiscard]] bool is_authorised(const HttpRequest& head, bool as_admin) const;
  /// Whether a page of neither this server nor the configured origin had a browser send it.
  [[nodiscard]] bool is_cross_site(const HttpRequest& head) const;
  [[nodiscard]] std::optional<HttpResponse> check(const HttpRequest& head, const RouteMatch& match) const;
  [[nodiscard]] HttpResponse dispatch(const HttpRequest& request, const RouteMatch& match);
  [[nodiscard]] HttpResponse handle_models(const RouteMatch& match) const;
  [[nodiscard]] HttpResponse handle_health() const;
  [[nodiscard]] HttpResponse handle_tokenize(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse handle_detokenize(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse handle_apply_template(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse handle_abort(const HttpRequest& request);
  /// Nothing when the client has gone before the cache could be flushed.
  [[nodiscard]] asio::awaitable<std::optional<HttpResponse>> handle_flush(HttpRequest& request, Connection& connection);
  [[nodiscard]] asio::awaitable<void> flush(async::Duration patience, std::optional<Result<void>>& outcome,
                                            async::WaitList& ended);
  [[nodiscard]] HttpResponse handle_pause(const HttpRequest& request);
  [[nodiscard]] HttpResponse handle_continue();
  [[nodiscard]] HttpResponse not_ready() const;
  [[nodiscard]] HttpResponse handle_server_info() const;
  [[nodiscard]] HttpResponse handle_metrics() const;

  /// Frees the request's body once it is parsed.
  asio::awaitable<void> generate(HttpRequest& request, Route route, Connection& connection, RequestRecord& record);
  /// 429 when no further generation may begin.
  [[nodiscard]] std::optional<openai::ApiError> check_in_flight() const;
  [[nodiscard]] Prepared prepare(const HttpRequest& request, Route route) const;
  /// Runs `work` on the worker thread and waits for it, also when cancelled.
  asio::awaitable<void> run_on_worker(std::function<void()> work);
  /// dispatch() and prepare() at the request border: what they throw is a 500.
  [[nodiscard]] HttpResponse dispatch_safely(const HttpRequest& request, const RouteMatch& match);
  [[nodiscard]] Prepared prepare_safely(const HttpRequest& request, Route route) const;
  [[nodiscard]] static bool needs_worker(const HttpRequest& request, Route route);
  /// The answer takes the body's place in the budget: it may be larger, and stays until the client has taken it.
  static void charge_response_body(HttpRequest& request, const RouteMatch& match, HttpResponse& response);
  void add_common_headers(HttpResponse& response, const std::string& request_id) const;
  void finish(const RequestRecord& record, std::string_view route);

  async::Runtime& runtime_;
  const ServerOptions& options_;
  const Service& service_;
  const BodyBudget& bodies_;
  const int64_t created_s_;
  Metrics metrics_;
  RandomSource random_;  ///< of ids
  RandomSource seeds_;
  GrammarCache grammar_cache_;
  InputProcessor input_processor_;
  RequestManager request_manager_;
  asio::thread_pool worker_{1};
  size_t connection_count_ = 0;
};

}  // namespace millrace::server
