#include "server/api.h"

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/algorithm/string/predicate.hpp>

#include <algorithm>
#include <chrono>
#include <span>

#include "async/event.h"
#include "base/log_event.h"
#include "server/openai/response_format.h"

namespace millrace::server {
namespace {

using openai::ApiError;
using openai::error_response;

/// Above this a body is parsed and tokenised on the worker: about a millisecond's work.
constexpr size_t kWorkerThresholdBytes = 32u << 10;

bool is_json(std::string_view content_type) {
  const std::string_view essence = content_type.substr(0, content_type.find(';'));
  const size_t end = essence.find_last_not_of(" \t");
  const std::string_view name = end == std::string_view::npos ? std::string_view() : essence.substr(0, end + 1);
  return name.empty() || boost::algorithm::iequals(name, "application/json") ||
         boost::algorithm::iends_with(name, "+json");
}

/// The text stays in the log: it may name what is no client's business.
ApiError internal_error(const std::exception& failure) {
  log::error("a request failed: {}", failure.what());
  return {500, "internal error", ""};
}

bool is_probe(std::string_view route) {
  return route == "/health" || route == "/ping" || route == "/livez" || route == "/metrics" || route == "/load" ||
         route == "/live";
}

/// Whether the request carries one of them, compared with all. An empty key is nobody's.
bool has_bearer_key(const HttpRequest& head, std::span<const std::string> keys) {
  constexpr std::string_view kScheme = "bearer ";
  if (!boost::algorithm::istarts_with(head.authorization, kScheme)) return false;
  const std::string_view given = std::string_view(head.authorization).substr(kScheme.size());
  bool found = false;
  for (const std::string& key : keys) {
    const bool is_equal = equal_in_constant_time(given, key);
    found = found || (is_equal && !key.empty());
  }
  return found;
}

bool is_printable(char c) {
  return c > 0x20 && c < 0x7f;
}

/// Fit to come back in a header.
bool is_valid_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 256 && std::ranges::all_of(id, is_printable);
}

/// Fit to stand in a line of the log, whatever a request calls itself.
std::string sanitize_for_log(std::string id) {
  std::ranges::replace_if(id, [](char c) { return !is_printable(c); }, '?');
  return id;
}

}  // namespace

Api::Api(async::Runtime& runtime, const ServerOptions& options, const Service& service, const BodyBudget& bodies)
    : runtime_(runtime),
      options_(options),
      service_(service),
      bodies_(bodies),
      created_s_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                     .count()),
      seeds_(options.random_seed),
      grammar_cache_(service.tokenizer, service.engine->model_info().vocab_size, service.defaults.eos_token_ids),
      input_processor_(options, service, seeds_, grammar_cache_),
      request_manager_(runtime, options, service, metrics_,
                       [this](std::function<void()> work) { return run_on_worker(std::move(work)); }) {}

Api::~Api() {
  worker_.join();
}

bool Api::is_authorised(const HttpRequest& head, bool as_admin) const {
  if (has_bearer_key(head, {&options_.admin_api_key, 1})) return true;
  if (as_admin && !options_.admin_api_key.empty()) return false;
  return options_.api_keys.empty() || has_bearer_key(head, options_.api_keys);
}

bool Api::is_cross_site(const HttpRequest& head) const {
  if (!head.origin.empty() && head.origin == options_.cors_origin) return false;
  if (!head.fetch_site.empty()) return head.fetch_site != "same-origin" && head.fetch_site != "none";
  const size_t scheme = head.origin.find("://");
  return !head.origin.empty() &&
         (scheme == std::string::npos || !boost::algorithm::iequals(head.origin.substr(scheme + 3), head.host));
}

std::optional<HttpResponse> Api::check(const HttpRequest& head, const RouteMatch& match) const {
  const bool is_public = match.is_public() || (match.route == Route::kMetrics && options_.metrics_public);
  if (!is_public && !is_authorised(head, match.is_admin())) {
    return error_response({401, "the API key is missing or wrong", ""});
  }
  // Where a key is wanted, a page has none to send.
  const bool is_open = options_.api_keys.empty() && options_.admin_api_key.empty();
  if (match.is_same_site_only() && is_open && is_cross_site(head)) {
    return error_response(
        {403, fmt::format("{} takes no requests from pages of other sites (--cors-origin, --api-key)", match.name),
         ""});
  }
  if (match.route == Route::kNotFound) {
    return error_response({404, fmt::format("no such route: {}", head.path.substr(0, 256)), ""});
  }
  if (match.route == Route::kMethodNotAllowed) {
    HttpResponse response =
        error_response({405, fmt::format("{} does not take this method, but {}", match.name, match.allowed), ""});
    response.headers.emplace_back("Allow", match.allowed);
    return response;
  }
  const bool takes_json = head.method == Method::kPost && match.route != Route::kHealth && match.route != Route::kExtra;
  const std::string& encoding = head.content_encoding;
  if (takes_json && !encoding.empty() && !boost::algorithm::iequals(encoding, "identity")) {
    return error_response({415, fmt::format("found content encoding '{}', wanted none", encoding.substr(0, 128)), ""});
  }
  if (takes_json && !is_json(head.content_type)) {
    return error_response(
        {415, fmt::format("found content type '{}', wanted application/json", head.content_type.substr(0, 128)), ""});
  }
  return std::nullopt;
}

std::optional<HttpResponse> Api::check_head(const HttpRequest& head) const {
  return check(head, match_route(head, service_.extra_routes));
}

void Api::add_common_headers(HttpResponse& response, const std::string& request_id) const {
  if (!options_.cors_origin.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
    response.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  }
  response.headers.emplace_back("X-Request-Id", request_id);
}

asio::awaitable<bool> Api::handle(HttpRequest request, Connection& connection) {
  RequestRecord record;
  record.begin = runtime_.now();
  if (!is_valid_request_id(request.request_id)) request.request_id = random_.hex_id();
  record.id = request.request_id;
  record.keep_alive = request.keep_alive;
  record.http11 = request.http11;
  const RouteMatch match = match_route(request, service_.extra_routes);
  std::optional<HttpResponse> response = check(request, match);
  const bool generates = match.route == Route::kCompletions || match.route == Route::kChatCompletions;
  if (!response && generates) {
    co_await generate(request, match.route, connection, record);
  } else {
    if (!response && match.route == Route::kFlushCache) {
      response = co_await handle_flush(request, connection);
    } else if (!response && needs_worker(request, match.route)) {
      co_await run_on_worker([&] { response = dispatch_safely(request, match); });
    } else if (!response) {
      response = dispatch_safely(request, match);
    }
    if (response) {
      charge_response_body(request, match, *response);
      record.status = response->status;
      add_common_headers(*response, request.request_id);
      const bool without_body = request.method == Method::kHead;
      const bool sent = co_await connection.send(*response, without_body, record.keep_alive, record.http11);
      record.keep_alive = record.keep_alive && sent;
    } else {
      record.status = 499;
      record.keep_alive = false;
    }
  }
  finish(record, match.name);
  co_return record.keep_alive;
}

asio::awaitable<void> Api::refuse(HttpResponse response, Connection& connection) {
  RequestRecord record;
  record.begin = runtime_.now();
  record.status = response.status;
  record.id = random_.hex_id();
  add_common_headers(response, record.id);
  const bool sent = co_await connection.send(response, false, false, true);
  finish(record, "refused");
  if (sent) co_await connection.linger();
}

void Api::finish(const RequestRecord& record, std::string_view route) {
  metrics_.count_http(route, record.status);
  const auto level = is_probe(route) ? log::Level::kDebug : log::Level::kInfo;
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

Api::Prepared Api::prepare(const HttpRequest& request, Route route) const {
  if (route == Route::kCompletions) {
    auto parsed = openai::parse_completion_request(request.body, input_processor_.limits());
    if (parsed.has_error()) return parsed.error();
    return input_processor_.prepare(std::move(*parsed), request.request_id);
  }
  auto parsed = openai::parse_chat_request(request.body, input_processor_.limits());
  if (parsed.has_error()) return parsed.error();
  return input_processor_.prepare(std::move(*parsed), request.request_id);
}

Api::Prepared Api::prepare_safely(const HttpRequest& request, Route route) const {
  try {
    return prepare(request, route);
  } catch (const std::exception& failure) {
    return internal_error(failure);
  }
}

HttpResponse Api::dispatch_safely(const HttpRequest& request, const RouteMatch& match) {
  try {
    return dispatch(request, match);
  } catch (const std::exception& failure) {
    return error_response(internal_error(failure));
  }
}

bool Api::needs_worker(const HttpRequest& request, Route route) {
  switch (route) {
    case Route::kCompletions:
    case Route::kChatCompletions:
      return request.body.size() > kWorkerThresholdBytes || openai::may_constrain_output(request.body);
    case Route::kTokenize:
    case Route::kDetokenize:
    case Route::kApplyTemplate: return request.body.size() > kWorkerThresholdBytes;
    default: return false;
  }
}

void Api::charge_response_body(HttpRequest& request, const RouteMatch& match, HttpResponse& response) {
  request.body = std::string();
  // What fills the server must be seen then above all.
  const size_t bytes = match.route == Route::kMetrics ? 0 : response.body.size();
  if (request.body_reservation.resize(bytes)) return;
  request.body_reservation = {};
  response =
      error_response({503, fmt::format("there is no room for an answer of {} bytes (--max-bodies-mib)", bytes), ""});
}

asio::awaitable<void> Api::run_on_worker(std::function<void()> work) {
  const async::Event done(runtime_);
  asio::post(worker_, [&work, done] {
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    done.set(failure);
  });
  // The worker uses this frame and the caller's, so the wait outlives a cancellation.
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await done.wait();
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
}

std::optional<ApiError> Api::check_in_flight() const {
  if (in_flight() < options_.max_requests_in_flight) return std::nullopt;
  return ApiError{429, fmt::format("{} requests are in flight already (--max-requests-in-flight)", in_flight()), ""};
}

asio::awaitable<void> Api::generate(HttpRequest& request, Route route, Connection& connection, RequestRecord& record) {
  std::optional<Prepared> prepared;
  std::optional<ApiError> busy = check_in_flight();
  if (!busy && needs_worker(request, route)) {
    co_await run_on_worker([&] { prepared = prepare_safely(request, route); });
    busy = check_in_flight();
  } else if (!busy) {
    prepared = prepare_safely(request, route);
  }
  if (busy) prepared = *std::move(busy);
  request.free_body();
  if (prepared->has_value() && request_manager_.is_active((*prepared)->info.id)) {
    GenerationSpec& spec = **prepared;
    if (spec.has_own_id) {
      prepared = ApiError{409, fmt::format("request_id: '{}' is in flight already", spec.info.id), "request_id"};
    } else {
      spec.set_id(spec.info.id + '-' + random_.hex_id());
    }
  }
  const RequestManager::Decorator with_headers = [this, &request](HttpResponse& response) {
    add_common_headers(response, request.request_id);
  };
  if (prepared->has_value()) {
    co_await request_manager_.serve(std::move(**prepared), connection, record, with_headers);
    co_return;
  }
  HttpResponse response = error_response(prepared->error());
  record.status = response.status;
  with_headers(response);
  const bool sent = co_await connection.send(response, false, record.keep_alive, record.http11);
  record.keep_alive = record.keep_alive && sent;
}

}  // namespace millrace::server
