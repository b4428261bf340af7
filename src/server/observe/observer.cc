#include "server/observe/observer.h"

#include <simdjson.h>

#include <chrono>

#include "base/json.h"
#include "server/observe/live_view.h"
#include "server/observe/profiler.h"
#include "server/observe/ring_metrics.h"
#include "server/openai/error.h"

namespace millrace::server {
namespace {

using openai::ApiResult;
using openai::error_response;

/// The head's clock: that of every RealRuntime.
int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

constexpr std::string_view kPage =
#include <page.inc>
    ;

HttpResponse answer_page() {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.body = kPage;
  response.headers = {{"Cache-Control", "no-cache"},
                      {"X-Frame-Options", "DENY"},
                      {"Content-Security-Policy",
                       "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                       "connect-src 'self'; img-src data:"}};
  return response;
}

/// The member "path" of a body that may be empty.
ApiResult<std::string> wanted_path(const HttpRequest& request) {
  if (request.body.find_first_not_of(" \t\r\n") == std::string::npos) return std::string();
  simdjson::dom::parser parser;
  simdjson::dom::object body;
  if (parser.parse(request.body).get(body) != simdjson::SUCCESS) {
    return openai::bad_request("", "the body is not a JSON object");
  }
  simdjson::dom::element path;
  if (body["path"].get(path) != simdjson::SUCCESS || path.is_null()) return std::string();
  std::string_view text;
  if (path.get(text) != simdjson::SUCCESS) return openai::bad_request("path", "path: wanted a string");
  return std::string(text);
}

HttpResponse refuse(const Error& error, std::string_view field) {
  if (error.code == ErrorCode::kAborted) return error_response({409, error.message, ""});
  return error_response(openai::to_api_error(error, field));
}

HttpResponse start_profile(Profiler& profiler, const HttpRequest& request) {
  const auto path = wanted_path(request);
  if (path.has_error()) return error_response(path.error());
  const auto started = profiler.start(*path);
  if (started.has_error()) return refuse(started.error(), "path");
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("path", started->string()).end_object();
  return response;
}

HttpResponse stop_profile(Profiler& profiler) {
  const auto written = profiler.stop();
  if (written.has_error()) return refuse(written.error(), "");
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("path", written->path.string()).member("plans", written->plans);
  json.member("lost_plans", written->lost).end_object();
  return response;
}

}  // namespace

void observe(Service& service, const ServerOptions& options) {
  const sched::Engine* engine = service.engine;
  const sched::RingStats* ring = engine->ring_stats();
  if (ring == nullptr) return;
  const auto profiler = std::make_shared<Profiler>(*ring, options.profile_dir);
  auto& routes = service.extra_routes;
  routes.push_back({Method::kGet, "/", [](const HttpRequest&) { return answer_page(); }, true});
  routes.push_back({Method::kGet, "/live", [=, name = options.served_model_name](const HttpRequest& request) {
                      HttpResponse response;
                      append_live_view(response.body, *ring, *engine, name, request.query, now_ns());
                      response.headers = {{"Cache-Control", "no-store"}};
                      return response;
                    }});
  routes.push_back({Method::kPost, "/start_profile",
                    [profiler](const HttpRequest& request) { return start_profile(*profiler, request); }});
  routes.push_back({Method::kPost, "/stop_profile",
                    [profiler](const HttpRequest&) { return stop_profile(*profiler); }});
  service.extra_metrics = [=, others = std::move(service.extra_metrics)](std::string& out) {
    if (others) others(out);
    append_ring_metrics(out, ring->snapshot(now_ns()), engine->status());
  };
}

}  // namespace millrace::server
