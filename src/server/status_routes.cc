#include "server/status_routes.h"

#include <fmt/chrono.h>

#include <chrono>

#include "base/json.h"
#include "sched/head/engine.h"
#include "sched/head/engine_status.h"
#include "sched/head/model_info.h"
#include "sched/head/ring_set.h"
#include "server/messages/error.h"
#include "server/observe/process_metrics.h"
#include "server/openapi.h"

namespace millrace::server {
namespace {

using openai::error_response;

constexpr std::string_view kModelsPath = "/v1/models";

bool is_from_anthropic_client(const HttpRequest& request) {
  return !request.anthropic_version.empty();
}

/// Writes a model as Anthropic's API describes it.
void write_anthropic_model(JsonWriter& json, std::string_view name, const sched::ModelInfo& info, int64_t created_s) {
  const auto created = std::chrono::sys_seconds(std::chrono::seconds(created_s));
  json.begin_object().member("type", "model").member("id", name).member("display_name", name);
  json.member("created_at", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", created)).member("lifecycle", "active");
  json.member("max_input_tokens", info.context_length).member("max_tokens", info.context_length).end_object();
}

void write_model(JsonWriter& json, std::string_view name, std::string_view root, const sched::ModelInfo& info,
                 int64_t created_s) {
  json.begin_object().member("id", name).member("object", "model");
  json.member("created", created_s).member("owned_by", "millrace").member("root", root);
  json.key("parent").null();
  json.member("max_model_len", info.context_length).end_object();
}

HttpResponse json_response(std::string_view json) {
  HttpResponse response;
  response.body = json;
  return response;
}

/// Returns the health of a server that lacks some of its rings. Its status is 200: the others take requests.
HttpResponse degraded_response(std::string_view reason) {
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("status", "degraded").member("reason", reason).end_object();
  return response;
}

void write_rings(JsonWriter& json, const sched::RingSet& rings) {
  json.key("rings").begin_array();
  for (size_t ring = 0; ring < rings.size(); ++ring) {
    const sched::RingReport report = rings.report(ring);
    json.begin_object().member("ring", ring).member("serves", report.fault.empty()).member("reason", report.fault);
    json.member("running", report.status.running).member("waiting", report.status.waiting);
    json.member("paused", report.status.paused).end_object();
  }
  json.end_array();
}

}  // namespace

StatusRoutes::StatusRoutes(const Sources& sources)
    : from_(sources),
      created_s_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                     .count()) {}

void StatusRoutes::add_to(Router& router) {
  add_probes_to(router);
  router.add({.method = Method::kGet,
              .path = "/v1/models",
              .handler = [this](const HttpRequest& request) { return models(request); },
              .doc = {.summary = "List the served model under each of its names", .response = "AnyModelList"}});
  router.add({.method = Method::kGet,
              .path = "/v1/models/{id}",
              .handler = [this](const HttpRequest& request) { return model(request); },
              .doc = {.summary = "Show the model of this name", .response = "AnyModel"}});
  router.add({.method = Method::kGet,
              .path = "/version",
              .handler = [](const HttpRequest&) { return json_response(R"({"version":")" MILLRACE_VERSION R"("})"); },
              .doc = {.summary = "The program's version", .response = "Version"}});
  router.add({.method = Method::kGet,
              .path = "/server_info",
              .handler = [this](const HttpRequest&) { return server_info(); },
              .doc = {.summary = "Model, engine, limits", .response = "ServerInfo"}});
  router.add({.method = Method::kGet,
              .path = "/openapi.json",
              .handler = [this](const HttpRequest&) { return openapi(); },
              .doc = {.summary = "This document", .response = "AnyObject"}});
}

void StatusRoutes::add_probes_to(Router& router) {
  router.add({.method = Method::kGet,
              .path = "/health",
              .access = Access::kPublic,
              .handler = [this](const HttpRequest&) { return health(); },
              .is_probe = true,
              .doc = {.summary = "Readiness: whether requests are accepted", .response = "Health"}});
  for (const Method method : {Method::kGet, Method::kPost}) {
    router.add({.method = method,
                .path = "/ping",
                .access = Access::kPublic,
                .handler = [this](const HttpRequest&) { return health(); },
                .is_probe = true,
                .doc = {.summary = "The same as /health", .response = "Health"}});
  }
  router.add({.method = Method::kGet,
              .path = "/livez",
              .access = Access::kPublic,
              .handler = [](const HttpRequest&) { return json_response(R"({"status":"ok"})"); },
              .is_probe = true,
              .doc = {.summary = "Liveness: 200 while the process runs, also during loading", .response = "Health"}});
  router.add({.method = Method::kGet,
              .path = "/load",
              .handler = [this](const HttpRequest&) { return load(); },
              .is_probe = true,
              .doc = {.summary = "Requests in flight", .response = "Load"}});
  // A server that is full must still be seen.
  router.add({.method = Method::kGet,
              .path = "/metrics",
              .access = from_.options.metrics_public ? Access::kPublic : Access::kClient,
              .handler = [this](const HttpRequest&) { return metrics(); },
              .is_probe = true,
              .answers_when_full = true,
              .doc = {.summary = "Metrics in Prometheus' form", .response = "text/plain"}});
}

HttpResponse StatusRoutes::models(const HttpRequest& request) const {
  HttpResponse response;
  JsonWriter json(response.body);
  const sched::ModelInfo& info = from_.service.engine->model_info();
  const std::string& root = from_.options.served_model_name;
  const std::vector<std::string>& others = from_.options.other_model_names;
  if (is_from_anthropic_client(request)) {
    json.begin_object().key("data").begin_array();
    write_anthropic_model(json, root, info, created_s_);
    for (const std::string& name : others) write_anthropic_model(json, name, info, created_s_);
    json.end_array().member("has_more", false).member("first_id", root);
    json.member("last_id", others.empty() ? root : others.back()).end_object();
    return response;
  }
  json.begin_object().member("object", "list").key("data").begin_array();
  write_model(json, root, root, info, created_s_);
  for (const std::string& name : others) write_model(json, name, root, info, created_s_);
  json.end_array().end_object();
  return response;
}

HttpResponse StatusRoutes::model(const HttpRequest& request) const {
  const std::string name = request.path.substr(kModelsPath.size() + 1);
  const bool is_anthropic = is_from_anthropic_client(request);
  if (auto unknown = from_.input_processor.check_model(name)) {
    return is_anthropic ? messages::error_response(*unknown) : error_response(*unknown);
  }
  HttpResponse response;
  JsonWriter json(response.body);
  if (is_anthropic) {
    write_anthropic_model(json, name, from_.service.engine->model_info(), created_s_);
    return response;
  }
  write_model(json, name, from_.options.served_model_name, from_.service.engine->model_info(), created_s_);
  return response;
}

HttpResponse StatusRoutes::health() const {
  const sched::EngineStatus status = from_.service.engine->status();
  if (!status.ready) {
    return error_response({503, status.reason.empty() ? "the engine is not ready" : status.reason, ""});
  }
  if (!status.degraded.empty()) return degraded_response(status.degraded);
  // A pause is the administrator's wish: a 503 would take the server out of the balancer, or restart it.
  return json_response(status.paused ? R"({"status":"paused"})" : R"({"status":"ok"})");
}

size_t StatusRoutes::requests_in_flight() const {
  return from_.generation.in_flight() + from_.pooling.in_flight();
}

HttpResponse StatusRoutes::load() const {
  const sched::EngineStatus status = from_.service.engine->status();
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("server_load", requests_in_flight());
  json.member("running", status.running).member("waiting", status.waiting).end_object();
  return response;
}

HttpResponse StatusRoutes::server_info() const {
  const sched::ModelInfo& info = from_.service.engine->model_info();
  const sched::EngineStatus status = from_.service.engine->status();
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("version", MILLRACE_VERSION).member("served_model_name", from_.options.served_model_name);
  json.key("model").begin_object().member("architecture", info.architecture);
  json.member("context_length", info.context_length).member("vocab_size", info.vocab_size);
  json.member("parameter_count", info.parameter_count).member("stage_count", info.stage_count);
  json.member("rank_count", info.rank_count);
  json.member("kv_token_capacity", info.kv_token_capacity);
  json.key("concurrency").begin_array();
  for (const sched::Concurrency& each : info.concurrency) {
    json.begin_object().member("tokens", each.tokens).member("requests", each.requests);
    json.member("limit", enum_name(each.limit)).end_object();
  }
  json.end_array().end_object();
  json.key("engine").begin_object().member("ready", status.ready).member("reason", status.reason);
  json.member("running", status.running).member("waiting", status.waiting);
  json.member("paused", status.paused);
  json.member("free_pages", status.free_pages).member("total_pages", status.total_pages);
  json.member("cached_pages", status.cached_pages);
  json.member("cached_host_pages", status.cached_host_pages).member("host_pages", status.host_pages).end_object();
  json.key("limits").begin_object().member("max_connections", from_.options.http.max_connections);
  json.member("max_requests_in_flight", from_.options.max_requests_in_flight)
      .member("max_choices", from_.options.max_choices);
  json.member("max_body_bytes", from_.options.http.max_body_bytes);
  json.member("max_bodies_bytes", from_.options.http.max_bodies_bytes).end_object();
  json.member("requests_in_flight", requests_in_flight()).member("connections", from_.usage.connections);
  if (const sched::RingSet* rings = from_.service.engine->rings()) write_rings(json, *rings);
  if (from_.service.extra_info) from_.service.extra_info(json);
  json.end_object();
  return response;
}

HttpResponse StatusRoutes::metrics() const {
  const Service& service = from_.service;
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = from_.metrics.render(from_.options.served_model_name, service.engine->status(),
                                       {.in_flight = requests_in_flight(),
                                        .connections = from_.usage.connections,
                                        .body_bytes = from_.usage.bodies.used_bytes()});
  append_process_metrics(response.body);
  if (service.extra_metrics) service.extra_metrics(response.body);
  from_.ring.append_metrics(response.body);
  return response;
}

HttpResponse StatusRoutes::openapi() const {
  HttpResponse response;
  append_openapi(response.body, from_.options, from_.input_processor.limits(), from_.router.routes());
  return response;
}

}  // namespace millrace::server
