#include "server/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/string/predicate.hpp>

#include "base/log_event.h"
#include "sched/head/engine.h"
#include "sched/head/model_info.h"
#include "server/http/connection.h"

namespace millrace::server {
namespace {

using openai::ApiError;

bool is_json(std::string_view content_type) {
  const std::string_view essence = content_type.substr(0, content_type.find(';'));
  const size_t end = essence.find_last_not_of(" \t");
  const std::string_view name = end == std::string_view::npos ? std::string_view() : essence.substr(0, end + 1);
  return name.empty() || boost::algorithm::iequals(name, "application/json") ||
         boost::algorithm::iends_with(name, "+json");
}

std::optional<ApiError> check_content(const HttpRequest& head) {
  const std::string& encoding = head.content_encoding;
  if (!encoding.empty() && !boost::algorithm::iequals(encoding, "identity")) {
    return ApiError{415, fmt::format("found content encoding '{}', wanted none", encoding.substr(0, 128)), ""};
  }
  if (!is_json(head.content_type)) {
    return ApiError{
        415, fmt::format("found content type '{}', wanted application/json", head.content_type.substr(0, 128)), ""};
  }
  return std::nullopt;
}

bool is_printable(char c) {
  return c > 0x20 && c < 0x7f;
}

/// Returns whether a client's request id may come back in a header.
bool is_valid_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 256 && std::ranges::all_of(id, is_printable);
}

/// Returns `id` as it may stand in a line of the log: the body's request_id may hold any bytes.
std::string sanitize_for_log(std::string id) {
  std::ranges::replace_if(id, [](char c) { return !is_printable(c); }, '?');
  return id;
}

HttpResponse preflight(const std::string& allowed) {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  response.headers = {{"Allow", allowed},
                      {"Access-Control-Allow-Methods", allowed},
                      {"Access-Control-Allow-Headers", "Authorization, *"},  // the star means all but that one
                      {"Access-Control-Max-Age", "86400"}};
  return response;
}

/// Calls `handler`; what it throws is a 500.
HttpResponse call_safely(const Route::Handler& handler, const Exchange& exchange) {
  try {
    return handler(exchange.request);
  } catch (const std::exception& failure) {
    return exchange.make_error(openai::internal_error(failure));
  }
}

}  // namespace

Api::Api(async::Runtime& runtime, const ServerOptions& options, const Service& service, const HttpUsage& usage)
    : runtime_(runtime),
      options_(options),
      seeds_(options.random_seed),
      grammar_cache_(service.tokenizer, service.engine->model_info().vocab_size, service.defaults.eos_token_ids),
      input_processor_(options, service, seeds_, grammar_cache_),
      worker_(runtime),
      access_(options),
      generation_(options, input_processor_, request_ids_, response_context(service)),
      pooling_(options, service, input_processor_, request_ids_, response_context(service)),
      messages_(input_processor_, generation_),
      responses_(runtime, options, service, input_processor_, request_ids_, generation_),
      utility_(options, service, input_processor_),
      admin_(runtime, *service.engine, access_, generation_, pooling_),
      ring_(runtime, *service.engine, options),
      status_({.options = options,
               .service = service,
               .usage = usage,
               .input_processor = input_processor_,
               .generation = generation_,
               .pooling = pooling_,
               .ring = ring_,
               .metrics = metrics_,
               .router = router_}) {
  generation_.add_to(router_);
  pooling_.add_to(router_);
  responses_.add_to(router_);
  messages_.add_to(router_);
  utility_.add_to(router_);
  admin_.add_to(router_);
  ring_.add_to(router_);
  status_.add_to(router_);
}

ResponseContext Api::response_context(const Service& service) {
  return {.runtime = runtime_,
          .engine = *service.engine,
          .metrics = metrics_,
          .worker = worker_,
          .comment_interval = options_.comment_interval};
}

std::optional<ApiError> Api::check(const HttpRequest& head, const RouteMatch& match) const {
  const Access access = match.is_preflight ? Access::kPublic : match.route ? match.route->access : Access::kClient;
  if (auto refusal = access_.check(head, access, match.name)) return refusal;
  if (match.is_preflight) return std::nullopt;
  if (match.route == nullptr && match.allowed.empty()) {
    return ApiError{404, fmt::format("no such route: {}", head.path.substr(0, 256)), ""};
  }
  if (match.route == nullptr && !head.upgrade.empty()) {
    // A client that would rather have a WebSocket goes on to POST at once, where after a 404 it tries again.
    return ApiError{
        426, fmt::format("{} is not served over {}, but by {}", match.name, head.upgrade.substr(0, 64), match.allowed),
        ""};
  }
  if (match.route == nullptr) {
    return ApiError{405, fmt::format("{} does not take this method, but {}", match.name, match.allowed), ""};
  }
  if (match.route->takes_json) return check_content(head);
  return std::nullopt;
}

std::optional<HttpResponse> Api::check_head(const HttpRequest& head) {
  const RouteMatch match = router_.match(head);
  const auto refusal = check(head, match);
  if (!refusal) return std::nullopt;
  HttpResponse response = match.make_error(*refusal);
  if (refusal->status == 405) response.headers.emplace_back("Allow", match.allowed);
  return response;
}

HttpHeaders Api::common_headers(const std::string& request_id) const {
  HttpHeaders headers;
  if (!options_.cors_origin.empty()) {
    headers.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
    headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  }
  headers.emplace_back("X-Request-Id", request_id);
  return headers;
}

asio::awaitable<void> Api::handle(HttpRequest request, Connection& connection) {
  if (!is_valid_request_id(request.request_id)) request.request_id = request_ids_.hex_id();
  Exchange exchange{.request = std::move(request), .connection = connection, .record = {}, .common_headers = {}};
  exchange.record.begin = runtime_.now();
  exchange.record.id = exchange.request.request_id;
  exchange.common_headers = common_headers(exchange.request.request_id);
  const RouteMatch match = router_.match(exchange.request);
  exchange.make_error = match.make_error;
  std::optional<HttpResponse> response = check_head(exchange.request);
  if (!response) response = co_await answer(exchange, match);
  if (response) {
    const bool needs_room = match.route == nullptr || !match.route->answers_when_full;
    charge_response_body(exchange, *response, needs_room ? response->body.size() : 0);
    co_await exchange.send(*std::move(response));
  }
  finish(exchange.record, match.name, match.is_probe);
}

asio::awaitable<std::optional<HttpResponse>> Api::answer(Exchange& exchange, const RouteMatch& match) {
  if (match.is_preflight) co_return preflight(match.allowed);
  std::optional<HttpResponse> response;
  if (const auto* later = std::get_if<Route::AsyncHandler>(&match.route->handler)) {
    response = co_await (*later)(exchange);
    co_return response;
  }
  const auto& handler = std::get<Route::Handler>(match.route->handler);
  if (match.route->uses_worker && exchange.request.body.size() > Worker::kLargeBodyBytes) {
    co_await worker_.run([&] { response = call_safely(handler, exchange); });
  } else {
    response = call_safely(handler, exchange);
  }
  co_return response;
}

void Api::charge_response_body(Exchange& exchange, HttpResponse& response, size_t bytes) {
  HttpRequest& request = exchange.request;
  request.body = std::string();
  if (request.body_reservation.resize(bytes)) return;
  request.body_reservation = {};
  response = exchange.make_error(
      {503, fmt::format("there is no room for an answer of {} bytes (--max-bodies-mib)", bytes), ""});
}

HttpResponse Api::make_error(const HttpError& error, const HttpRequest* head) {
  const openai::ErrorDialect dialect = head == nullptr ? &openai::error_response : router_.match(*head).make_error;
  return dialect({error.status, error.message, ""});
}

void Api::on_refused_request(HttpResponse& response) {
  RequestRecord record;
  record.begin = runtime_.now();
  record.status = response.status;
  record.id = request_ids_.hex_id();
  std::ranges::move(common_headers(record.id), std::back_inserter(response.headers));
  finish(record, "refused", false);
}

void Api::on_refused_connection(HttpResponse& response) {
  std::ranges::move(common_headers(request_ids_.hex_id()), std::back_inserter(response.headers));
  metrics_.count_http("refused", response.status);
}

void Api::end_requests(std::chrono::milliseconds waited) {
  log::warn("{} requests are still running after {} ms: ending them", generation_.in_flight() + pooling_.in_flight(),
            waited.count());
  generation_.reject_all();
  pooling_.reject_all();
}

void Api::finish(const RequestRecord& record, std::string_view route, bool is_probe) {
  metrics_.count_http(route, record.status);
  const auto level = is_probe ? log::Level::kDebug : log::Level::kInfo;
  if (!log::enabled(level)) return;
  const auto to_ms = [&](async::TimePoint at) {
    return std::chrono::duration<double, std::milli>(at - record.begin).count();
  };
  log::event(level, "request",
             {{"id", sanitize_for_log(record.id), true},
              {"route", route, true},
              {"status", std::to_string(record.status)},
              {"prompt_tokens", std::to_string(record.prompt_tokens)},
              {"completion_tokens", std::to_string(record.completion_tokens)},
              {"ttft_ms", fmt::format("{:.1f}", record.first_token ? to_ms(*record.first_token) : 0.0)},
              {"total_ms", fmt::format("{:.1f}", to_ms(runtime_.now()))}});
}

}  // namespace millrace::server
