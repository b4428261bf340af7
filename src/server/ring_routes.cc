#include "server/ring_routes.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <limits>
#include <optional>
#include <vector>

#include "base/json.h"
#include "base/json_value.h"
#include "sched/head/engine.h"
#include "sched/head/ring_view.h"
#include "server/observe/cost_view.h"
#include "server/observe/live_view.h"
#include "server/observe/ring_labels.h"
#include "server/observe/ring_metrics.h"
#include "server/openai/error.h"
#include "server/exchange.h"
#include "server/ring_address.h"

namespace millrace::server {
namespace {

using openai::ApiResult;
using openai::error_response;

/// Longest wait for the statistics of a ring in another process, which come several times a second.
constexpr async::Duration kStatisticsPatience = std::chrono::seconds(1);
constexpr async::Duration kStatisticsPoll = std::chrono::milliseconds(10);

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

struct ProfileRequest {
  std::string path;  ///< empty: not said
  std::optional<uint32_t> ring;
};

ApiResult<ProfileRequest> parse_profile_request(const HttpRequest& request) {
  ProfileRequest wanted;
  if (request.body.find_first_not_of(" \t\r\n") == std::string::npos) return wanted;
  const auto document = JsonDocument::parse(request.body);
  JsonObject body;
  if (document.has_error() || !document->root().get(body)) {
    return openai::bad_request("", "the body is not a JSON object");
  }
  JsonValue path;
  if (body["path"].get(path) && !path.is_null()) {
    std::string_view text;
    if (!path.get(text)) return openai::bad_request("path", "path: wanted a string");
    wanted.path = text;
  }
  JsonValue ring;
  if (body["ring"].get(ring) && !ring.is_null()) {
    int64_t number = 0;
    const bool is_number = ring.get(number) && number >= 0 && number <= UINT32_MAX;
    if (!is_number) return openai::bad_request("ring", "ring: wanted a number from 0");
    wanted.ring = static_cast<uint32_t>(number);
  }
  return wanted;
}

/// Writes the first path as "path", and with several rings all as "paths".
void write_paths(JsonWriter& json, const std::vector<std::filesystem::path>& paths, bool has_rings) {
  json.member("path", paths.front().string());
  if (!has_rings) return;
  json.key("paths").begin_array();
  for (const std::filesystem::path& path : paths) json.value(path.string());
  json.end_array();
}

/// Returns the number that the query has for `name`, or nothing.
std::optional<uint64_t> number_in_query(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (part.size() <= name.size() || !part.starts_with(name) || part[name.size()] != '=') continue;
    const std::string_view digits = part.substr(name.size() + 1);
    uint64_t number = 0;
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (failure == std::errc()) return number;
  }
  return std::nullopt;
}

HttpResponse refuse(const Error& error, std::string_view field) {
  if (error.code == ErrorCode::kAborted) return error_response({409, error.message, ""});
  return error_response(openai::to_api_error(error, field));
}

}  // namespace

RingRoutes::RingRoutes(async::Runtime& runtime, sched::Engine& engine, const ServerOptions& options)
    : runtime_(runtime),
      engine_(engine),
      options_(options),
      started_ns_(now_ns()),
      profilers_(engine, options.profile_dir) {}

void RingRoutes::add_to(Router& router) {
  router.add({.path = "/",
              .access = Access::kPublic,
              .handler = [](const HttpRequest&) { return page_response(); },
              .doc = {.summary = "The live page", .response = "text/html"}});
  router.add({.path = "/live",
              .handler = [this](const HttpRequest& request) { return live(request); },
              .is_probe = true,
              .doc = {.summary = "What the live page shows; ?since=N: only micro-batches above number N; ?ring=N",
                      .response = "AnyObject",
                      .query = R"({"name":"since","in":"query","schema":{"type":"string"}},)"
                               R"({"name":"ring","in":"query","schema":{"type":"string"}})"}});
  router.add({.path = "/cost_model",
              .handler = [this](const HttpRequest& request) { return cost_model(request); },
              .doc = {.summary = "The ring as a cluster file for `millrace simulate`; ?ring=N",
                      .response = "AnyObject",
                      .query = R"({"name":"ring","in":"query","schema":{"type":"string"}})"}});
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
              .handler = [this](Exchange&) { return stop_profile(); },
              .doc = {.summary = "End the trace", .response = "ProfileStopped"}});
}

ApiResult<RingRoutes::ShownRing> RingRoutes::shown_ring(const HttpRequest& request) const {
  const auto number = static_cast<uint32_t>(
      std::min<uint64_t>(number_in_query(request.query, "ring").value_or(0), std::numeric_limits<uint32_t>::max()));
  if (auto unknown = check_ring(engine_, number, "ring")) return *std::move(unknown);
  const sched::Engine& engine = engine_of(engine_, number);
  if (auto stats = engine.ring_stats()) return ShownRing{.engine = engine, .stats = std::move(stats)};
  const std::string why = why_unseen(engine);
  return openai::ApiError{503, engine_.rings() == nullptr ? why : fmt::format("ring {}: {}", number, why), ""};
}

HttpResponse RingRoutes::live(const HttpRequest& request) const {
  const auto shown = shown_ring(request);
  if (shown.has_error()) return error_response(shown.error());
  HttpResponse response;
  append_live_view(response.body, *shown->stats,
                   {.engine = shown->engine,
                    .rings = engine_.rings(),
                    .model_name = options_.served_model_name,
                    .after = number_in_query(request.query, "since").value_or(0),
                    .started_ns = started_ns_,
                    .now_ns = now_ns()});
  response.headers = {{"Cache-Control", "no-store"}};
  return response;
}

HttpResponse RingRoutes::cost_model(const HttpRequest& request) const {
  const auto shown = shown_ring(request);
  if (shown.has_error()) return error_response(shown.error());
  const sched::RingCosts costs = shown->stats->costs();
  if (costs.stages.empty()) {
    return error_response({503,
                           "the stages' costs are not known: at least 8 micro-batches must have run and predictions "
                           "have been right lately",
                           ""});
  }
  HttpResponse response;
  append_cost_view(response.body, costs, shown->stats->snapshot(now_ns()), options_.served_model_name);
  return response;
}

HttpResponse RingRoutes::start_profile(const HttpRequest& request) {
  if (engine_.rings() == nullptr && engine_.ring_stats() == nullptr) {
    return error_response({503, why_unseen(engine_), ""});
  }
  const auto wanted = parse_profile_request(request);
  if (wanted.has_error()) return error_response(wanted.error());
  if (const auto unknown = check_ring(engine_, wanted->ring, "ring")) return error_response(*unknown);
  const auto started = profilers_.start(wanted->path, wanted->ring);
  if (started.has_error()) return refuse(started.error(), "path");
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object();
  write_paths(json, *started, engine_.rings() != nullptr);
  json.end_object();
  return response;
}

asio::awaitable<std::optional<HttpResponse>> RingRoutes::stop_profile() {
  // Whatever a ring recorded before the request is in the file. A ring that is gone sends nothing any more.
  const std::vector<int64_t> before = profilers_.as_of_ns(now_ns());
  const async::TimePoint deadline = runtime_.now() + kStatisticsPatience;
  while (!profilers_.have_passed(before, now_ns()) && runtime_.now() < deadline) {
    co_await async::sleep_for(runtime_, kStatisticsPoll);
  }
  const auto all = profilers_.stop();
  if (all.has_error()) co_return refuse(all.error(), "");
  std::vector<std::filesystem::path> paths;
  uint64_t plans = 0;
  uint64_t lost = 0;
  for (const Profiler::Written& written : *all) {
    paths.push_back(written.path);
    plans += written.plans;
    lost += written.lost;
  }
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object();
  write_paths(json, paths, engine_.rings() != nullptr);
  json.member("plans", plans).member("lost_plans", lost).end_object();
  co_return response;
}

void RingRoutes::append_metrics(std::string& out) const {
  sched::RingSet* rings = engine_.rings();
  if (rings == nullptr) {
    append_ring(out, engine_);
    return;
  }
  append_router_metrics(out, *rings);
  std::vector<std::string> texts(rings->size());
  for (size_t ring = 0; ring < texts.size(); ++ring) append_ring(texts[ring], rings->ring(ring));
  append_ring_labelled(out, texts);
}

void RingRoutes::append_ring(std::string& out, const sched::Engine& engine) const {
  const auto ring = engine.ring_stats();
  if (ring == nullptr) return;
  append_ring_metrics(out, ring->snapshot(now_ns()), engine.status(), options_.served_model_name);
}

}  // namespace millrace::server
