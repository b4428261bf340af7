#include "server/ring_routes.h"

#include <chrono>
#include <memory>

#include "base/json.h"
#include "base/json_value.h"
#include "sched/head/engine.h"
#include "sched/head/engine_status.h"
#include "server/observe/cost_view.h"
#include "server/observe/live_view.h"
#include "server/observe/ring_metrics.h"
#include "server/openai/error.h"

namespace millrace::server {
namespace {

using openai::ApiResult;
using openai::error_response;

/// Returns the time on the head's clock, which is that of every RealRuntime.
int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

constexpr std::string_view kPage =
#include <page.inc>
    ;

HttpResponse page_response() {
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

/// Returns the member "path" of a body, or an empty string where there is none.
ApiResult<std::string> wanted_path(const HttpRequest& request) {
  if (request.body.find_first_not_of(" \t\r\n") == std::string::npos) return std::string();
  const auto document = JsonDocument::parse(request.body);
  JsonObject body;
  if (document.has_error() || !document->root().get(body)) {
    return openai::bad_request("", "the body is not a JSON object");
  }
  JsonValue path;
  if (!body["path"].get(path) || path.is_null()) return std::string();
  std::string_view text;
  if (!path.get(text)) return openai::bad_request("path", "path: wanted a string");
  return std::string(text);
}

HttpResponse refuse(const Error& error, std::string_view field) {
  if (error.code == ErrorCode::kAborted) return error_response({409, error.message, ""});
  return error_response(openai::to_api_error(error, field));
}

}  // namespace

RingRoutes::RingRoutes(const sched::Engine& engine, const ServerOptions& options)
    : engine_(engine), options_(options), started_ns_(now_ns()) {}

void RingRoutes::add_to(Router& router) {
  router.add({.path = "/",
              .access = Access::kPublic,
              .handler = [](const HttpRequest&) { return page_response(); },
              .doc = {.summary = "The live page", .response = "text/html"}});
  router.add({.path = "/live",
              .handler = [this](const HttpRequest& request) { return live(request); },
              .is_probe = true,
              .doc = {.summary = "What the live page shows; ?since=N: only micro-batches above number N",
                      .response = "AnyObject",
                      .query = R"({"name":"since","in":"query","schema":{"type":"string"}})"}});
  router.add({.path = "/cost_model",
              .handler = [this](const HttpRequest&) { return cost_model(); },
              .doc = {.summary = "The ring as a cluster file for `millrace simulate`", .response = "AnyObject"}});
  router.add({.method = Method::kPost,
              .path = "/start_profile",
              .access = Access::kAdmin,
              .handler = [this](const HttpRequest& request) { return start_profile(request); },
              .doc = {.summary = "Begin to write a trace",
                      .request = "ProfileRequest",
                      .response = "ProfileStarted",
                      .body_optional = true}});
  router.add({.method = Method::kPost,
              .path = "/stop_profile",
              .access = Access::kAdmin,
              .handler = [this](const HttpRequest&) { return stop_profile(); },
              .doc = {.summary = "End the trace", .response = "ProfileStopped"}});
}

HttpResponse RingRoutes::live(const HttpRequest& request) const {
  const sched::RingStats* ring = engine_.ring_stats();
  if (ring == nullptr) return not_ready();
  HttpResponse response;
  append_live_view(response.body, *ring, engine_, options_.served_model_name, request.query, started_ns_, now_ns());
  response.headers = {{"Cache-Control", "no-store"}};
  return response;
}

HttpResponse RingRoutes::cost_model() const {
  const sched::RingStats* ring = engine_.ring_stats();
  if (ring == nullptr) return not_ready();
  const sched::RingCosts costs = ring->costs();
  if (costs.stages.empty()) {
    return error_response({503,
                           "the stages' costs are not known: at least 8 micro-batches must have run and predictions "
                           "have been right lately",
                           ""});
  }
  HttpResponse response;
  append_cost_view(response.body, costs, ring->snapshot(now_ns()), options_.served_model_name);
  return response;
}

HttpResponse RingRoutes::start_profile(const HttpRequest& request) {
  const sched::RingStats* ring = engine_.ring_stats();
  if (ring == nullptr) return not_ready();
  if (!profiler_) profiler_ = std::make_unique<Profiler>(*ring, options_.profile_dir);
  const auto path = wanted_path(request);
  if (path.has_error()) return error_response(path.error());
  const auto started = profiler_->start(*path);
  if (started.has_error()) return refuse(started.error(), "path");
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("path", started->string()).end_object();
  return response;
}

HttpResponse RingRoutes::stop_profile() {
  if (!profiler_) return refuse(Error{ErrorCode::kAborted, "no profile is being recorded"}, "");
  const auto written = profiler_->stop();
  if (written.has_error()) return refuse(written.error(), "");
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("path", written->path.string()).member("plans", written->plans);
  json.member("lost_plans", written->lost).end_object();
  return response;
}

void RingRoutes::append_metrics(std::string& out) const {
  if (const sched::RingStats* ring = engine_.ring_stats()) {
    append_ring_metrics(out, ring->snapshot(now_ns()), engine_.status(), options_.served_model_name);
  }
}

HttpResponse RingRoutes::not_ready() const {
  return error_response({503, engine_.status().reason, ""});
}

}  // namespace millrace::server
