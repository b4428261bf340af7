#include "server/pooling_routes.h"

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/this_coro.hpp>
#include <functional>
#include <memory>
#include <utility>

#include "server/exchange.h"
#include "server/observe/server_metrics.h"
#include "server/pooling_model.h"
#include "server/pooling_spec.h"
#include "server/pooling_task.h"
#include "server/worker.h"

namespace millrace::server {
namespace {

using openai::ApiError;
using openai::ApiResult;
using openai::error_response;

/// Responses of more numbers than this are made on the worker: about a millisecond's work.
constexpr size_t kWorkerThresholdNumbers = 1 << 14;

size_t count_numbers(const std::vector<std::vector<float>>& vectors) {
  return vectors.empty() ? 0 : vectors.size() * vectors.front().size();
}

}  // namespace

/// A prepared request, and what makes its response of the pooled rows.
struct PoolingRoutes::Job {
  PoolingSpec spec;
  std::function<void(std::string& out, const openai::PoolingInfo& info, Vectors pooled)> write;
};

PoolingRoutes::PoolingRoutes(const ServerOptions& options, const Service& service,
                             const InputProcessor& input_processor, RandomSource& request_ids, ResponseContext context)
    : service_(service), context_(context), input_(options, service, input_processor), active_(options, request_ids) {}

void PoolingRoutes::add_to(Router& router) {
  add(router, "/v1/embeddings", &PoolingRoutes::prepare_embeddings,
      {.summary = "The vectors of texts", .request = "EmbeddingRequest", .response = "EmbeddingResponse"});
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank"}) {
    add(router, path, &PoolingRoutes::prepare_rerank,
        {.summary = "Documents in the order of their scores",
         .request = "RerankRequest",
         .response = "RerankResponse"});
  }
  for (const char* path : {"/score", "/v1/score"}) {
    add(router, path, &PoolingRoutes::prepare_score,
        {.summary = "The scores of pairs of texts", .request = "ScoreRequest", .response = "ScoreResponse"});
  }
}

void PoolingRoutes::add(Router& router, std::string path, Prepare prepare, RouteDoc doc) {
  router.add({.method = Method::kPost,
              .path = std::move(path),
              .handler = [this, prepare](Exchange& exchange) { return answer(exchange, prepare); },
              .takes_json = true,
              .doc = service_.pooling == nullptr ? RouteDoc{} : doc});
}

ApiResult<PoolingRoutes::Job> PoolingRoutes::prepare_embeddings(const HttpRequest& request) const {
  auto parsed = openai::parse_embedding_request(request.body, input_.limits());
  if (parsed.has_error()) return parsed.error();
  auto spec = input_.prepare(*parsed, request.request_id);
  if (spec.has_error()) return spec.error();
  return Job{std::move(*spec),
             [&model = *service_.pooling, is_base64 = parsed->is_base64, dimensions = parsed->dimensions,
              use_activation = parsed->use_activation](std::string& out, const auto& info, Vectors vectors) {
               for (auto& vector : vectors) vector = model.embed(std::move(vector), dimensions, use_activation);
               openai::append_embeddings(out, info, vectors, is_base64);
             }};
}

ApiResult<PoolingRoutes::Job> PoolingRoutes::prepare_rerank(const HttpRequest& request) const {
  auto parsed = openai::parse_rerank_request(request.body, input_.limits());
  if (parsed.has_error()) return parsed.error();
  auto spec = input_.prepare(*parsed, "rerank", request.request_id);
  if (spec.has_error()) return spec.error();
  return Job{std::move(*spec), [this, rerank = std::make_shared<const openai::RerankRequest>(std::move(*parsed))](
                                   std::string& out, const auto& info, Vectors pooled) {
               const std::vector<float> scores = scores_of(*rerank, std::move(pooled));
               const auto texts =
                   rerank->return_documents ? std::span(rerank->documents) : std::span<const std::string>();
               openai::append_rerank(out, info, scores, texts, rerank->top_n);
             }};
}

ApiResult<PoolingRoutes::Job> PoolingRoutes::prepare_score(const HttpRequest& request) const {
  auto parsed = openai::parse_score_request(request.body, input_.limits());
  if (parsed.has_error()) return parsed.error();
  auto spec = input_.prepare(*parsed, "score", request.request_id);
  if (spec.has_error()) return spec.error();
  return Job{std::move(*spec), [this, pairs = std::make_shared<const openai::PairRequest>(std::move(*parsed))](
                                   std::string& out, const auto& info, Vectors pooled) {
               openai::append_scores(out, info, scores_of(*pairs, std::move(pooled)));
             }};
}

std::vector<float> PoolingRoutes::scores_of(const openai::PairRequest& request, Vectors pooled) const {
  const PoolingModel& model = *service_.pooling;
  std::vector<float> scores;
  if (model.scores) {
    for (auto& each : pooled) scores.push_back(model.score(std::move(each), request.use_activation));
    return scores;
  }
  for (auto& each : pooled) each = model.embed(std::move(each), 0, true);
  for (size_t pair = 0; pair < request.pair_count(); ++pair) {
    scores.push_back(cosine(pooled[request.query_of(pair)], pooled[request.queries.size() + pair]));
  }
  return scores;
}

ApiResult<PoolingRoutes::Job> PoolingRoutes::prepare_safely(const HttpRequest& request, Prepare prepare) const {
  try {
    return (this->*prepare)(request);
  } catch (const std::exception& failure) {
    return openai::internal_error(failure);
  }
}

asio::awaitable<std::optional<HttpResponse>> PoolingRoutes::answer(Exchange& exchange, Prepare prepare) {
  if (service_.pooling == nullptr) {
    co_return error_response({400,
                              "embeddings and scores are not supported by this server: they want a model for them, or "
                              "--convert embed",
                              ""});
  }
  HttpRequest& request = exchange.request;
  std::optional<ApiResult<Job>> job;
  if (request.body.size() > Worker::kLargeBodyBytes) {
    co_await context_.worker.run([&] { job = prepare_safely(request, prepare); });
  } else {
    job = prepare_safely(request, prepare);
  }
  request.free_body();
  if (job->has_error()) co_return error_response(job->error());
  if (const auto full = active_.check_room()) co_return error_response(*full);
  if (const auto taken = active_.make_id_unique((*job)->spec)) co_return error_response(*taken);
  std::optional<HttpResponse> response = co_await serve(std::move(**job), exchange);
  co_return response;
}

asio::awaitable<std::optional<HttpResponse>> PoolingRoutes::serve(Job job, Exchange& exchange) {
  PoolingTask task(context_, std::move(job.spec), exchange);
  active_.add(task.info().id, task);
  std::exception_ptr failure;
  std::optional<HttpResponse> response;
  try {
    response = co_await respond(task, job, exchange);
  } catch (...) {
    failure = std::current_exception();
  }
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await task.finish();
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
  active_.remove(task.info().id);
  if (failure) std::rethrow_exception(failure);
  co_return response;
}

asio::awaitable<std::optional<HttpResponse>> PoolingRoutes::respond(PoolingTask& task, const Job& job,
                                                                    Exchange& exchange) {
  const std::optional<ApiError> failure = co_await task.run();
  if (exchange.connection.peer_gone()) {
    exchange.record.status = 499;
    ++context_.metrics.disconnects;
    co_return std::nullopt;
  }
  if (failure) {
    if (context_.is_stopping) exchange.connection.close_after_response();
    co_return error_response(*failure);
  }
  HttpResponse response;
  Vectors vectors = task.take_vectors();
  if (count_numbers(vectors) > kWorkerThresholdNumbers) {
    co_await context_.worker.run([&] { job.write(response.body, task.info(), std::move(vectors)); });
  } else {
    job.write(response.body, task.info(), std::move(vectors));
  }
  co_return response;
}

size_t PoolingRoutes::abort(const std::string& id) {
  return active_.abort({"", "embd-", "rerank-", "score-"}, id);
}

size_t PoolingRoutes::abort_all() {
  return active_.abort_all();
}

void PoolingRoutes::reject_all() {
  context_.is_stopping = true;
  active_.wake_all();
}

}  // namespace millrace::server
