#pragma once

#include <string>
#include <vector>

#include "server/active_tasks.h"
#include "server/pooling_input.h"
#include "server/response_context.h"
#include "server/router.h"

namespace millrace::server {

struct Exchange;
class PoolingTask;

/// The routes that give vectors of texts and scores of pairs: embeddings, rerank, score. Knows the requests in flight,
/// so that they can be counted and aborted. Owned by Api; its executor only.
class PoolingRoutes {
 public:
  /// All arguments outlive the object.
  PoolingRoutes(const ServerOptions& options, const Service& service, const InputProcessor& input_processor,
                RandomSource& request_ids, ResponseContext context);

  /// Adds the routes, which refuse every request where the server has no model that pools.
  void add_to(Router& router);

  [[nodiscard]] size_t in_flight() const { return active_.size(); }
  /// Aborts the request with this response id or request_id; returns the count of aborted sequences.
  size_t abort(const std::string& id);
  size_t abort_all();
  /// Ends every request with an error, from now on: the server stops.
  void reject_all();

 private:
  using Vectors = std::vector<std::vector<float>>;
  struct Job;
  using Prepare = openai::ApiResult<Job> (PoolingRoutes::*)(const HttpRequest&) const;

  void add(Router& router, std::string path, Prepare prepare, RouteDoc doc);
  [[nodiscard]] openai::ApiResult<Job> prepare_embeddings(const HttpRequest& request) const;
  [[nodiscard]] openai::ApiResult<Job> prepare_rerank(const HttpRequest& request) const;
  [[nodiscard]] openai::ApiResult<Job> prepare_score(const HttpRequest& request) const;
  /// Returns the score of each pair.
  [[nodiscard]] std::vector<float> scores_of(const openai::PairRequest& request, Vectors pooled) const;
  [[nodiscard]] openai::ApiResult<Job> prepare_safely(const HttpRequest& request, Prepare prepare) const;
  [[nodiscard]] asio::awaitable<std::optional<HttpResponse>> answer(Exchange& exchange, Prepare prepare);
  /// Runs a PoolingTask and returns its response; nothing when the client has gone. The engine's requests are aborted
  /// before this returns.
  [[nodiscard]] asio::awaitable<std::optional<HttpResponse>> serve(Job job, Exchange& exchange);
  [[nodiscard]] asio::awaitable<std::optional<HttpResponse>> respond(PoolingTask& task, const Job& job,
                                                                     Exchange& exchange);

  const Service& service_;
  ResponseContext context_;
  PoolingInput input_;
  ActiveTasks<PoolingTask> active_;
};

}  // namespace millrace::server
