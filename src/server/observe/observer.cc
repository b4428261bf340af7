#include "server/observe/observer.h"

#include <chrono>

#include "base/json.h"
#include "base/json_value.h"
#include "server/observe/cost_view.h"
#include "server/observe/live_view.h"
#include "server/observe/profiler.h"
#include "server/observe/ring_metrics.h"
#include "server/openai/error.h"

namespace millrace::server {
namespace {

using openai::ApiResult;
using openai::error_response;

/// The head's clock: that of every RealRuntime.
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

/// The member "path" of a body that may be empty.
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

/// What the routes share. The engine has no RingStats before its ring is there.
class Observer {
 public:
  Observer(const sched::Engine& engine, const ServerOptions& options)
      : engine_(engine), model_name_(options.served_model_name), profile_dir_(options.profile_dir) {}

  HttpResponse live(const HttpRequest& request) const {
    const sched::RingStats* ring = engine_.ring_stats();
    if (ring == nullptr) return not_ready();
    HttpResponse response;
    append_live_view(response.body, *ring, engine_, model_name_, request.query, started_ns_, now_ns());
    response.headers = {{"Cache-Control", "no-store"}};
    return response;
  }

  HttpResponse cost_model() const {
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
    append_cost_view(response.body, costs, ring->snapshot(now_ns()), model_name_);
    return response;
  }

  HttpResponse start_profile(const HttpRequest& request) {
    const sched::RingStats* ring = engine_.ring_stats();
    if (ring == nullptr) return not_ready();
    if (!profiler_) profiler_ = std::make_unique<Profiler>(*ring, profile_dir_);
    const auto path = wanted_path(request);
    if (path.has_error()) return error_response(path.error());
    const auto started = profiler_->start(*path);
    if (started.has_error()) return refuse(started.error(), "path");
    HttpResponse response;
    JsonWriter(response.body).begin_object().member("path", started->string()).end_object();
    return response;
  }

  HttpResponse stop_profile() {
    if (!profiler_) return refuse(Error{ErrorCode::kAborted, "no profile is being recorded"}, "");
    const auto written = profiler_->stop();
    if (written.has_error()) return refuse(written.error(), "");
    HttpResponse response;
    JsonWriter json(response.body);
    json.begin_object().member("path", written->path.string()).member("plans", written->plans);
    json.member("lost_plans", written->lost).end_object();
    return response;
  }

  void append_metrics(std::string& out) const {
    if (const sched::RingStats* ring = engine_.ring_stats()) {
      append_ring_metrics(out, ring->snapshot(now_ns()), engine_.status(), model_name_);
    }
  }

 private:
  [[nodiscard]] HttpResponse not_ready() const { return error_response({503, engine_.status().reason, ""}); }

  const sched::Engine& engine_;
  const std::string model_name_;
  const std::string profile_dir_;
  const int64_t started_ns_ = now_ns();
  std::unique_ptr<Profiler> profiler_;  // from the first profile on
};

}  // namespace

void add_observer_routes(Service& service, const ServerOptions& options) {
  const auto observer = std::make_shared<Observer>(*service.engine, options);
  auto& routes = service.extra_routes;
  routes.push_back({Method::kGet,
                    "/",
                    [](const HttpRequest&) { return page_response(); },
                    true,
                    {"The live page", "", "text/html"}});
  routes.push_back({Method::kGet,
                    "/live",
                    [=](const HttpRequest& request) { return observer->live(request); },
                    false,
                    {"What the live page shows; ?since=N: only micro-batches above number N", "", "AnyObject"}});
  routes.push_back({Method::kGet,
                    "/cost_model",
                    [=](const HttpRequest&) { return observer->cost_model(); },
                    false,
                    {"The ring as a cluster that `millrace simulate` reads", "", "AnyObject"}});
  routes.push_back({Method::kPost,
                    "/start_profile",
                    [=](const HttpRequest& request) { return observer->start_profile(request); },
                    false,
                    {"Begin to write a trace", "ProfileRequest", "ProfileStarted", true},
                    true});
  routes.push_back({Method::kPost,
                    "/stop_profile",
                    [=](const HttpRequest&) { return observer->stop_profile(); },
                    false,
                    {"End the trace", "", "ProfileStopped"},
                    true});
  service.extra_metrics = [=, others = std::move(service.extra_metrics)](std::string& out) {
    if (others) others(out);
    observer->append_metrics(out);
  };
}

}  // namespace millrace::server
