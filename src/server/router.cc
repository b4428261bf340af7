#include "server/router.h"

#include <array>

namespace millrace::server {
namespace {

struct Entry {
  Method method;
  std::string_view path;
  Route route;
};

constexpr std::string_view kModelPrefix = "/v1/models/";

constexpr std::array kRoutes = {
    Entry{Method::kPost, "/v1/completions", Route::kCompletions},
    Entry{Method::kPost, "/v1/chat/completions", Route::kChatCompletions},
    Entry{Method::kGet, "/v1/models", Route::kModels},
    Entry{Method::kGet, "/health", Route::kHealth},
    Entry{Method::kGet, "/ping", Route::kHealth},
    Entry{Method::kPost, "/ping", Route::kHealth},
    Entry{Method::kGet, "/version", Route::kVersion},
    Entry{Method::kPost, "/tokenize", Route::kTokenize},
    Entry{Method::kPost, "/detokenize", Route::kDetokenize},
    Entry{Method::kPost, "/apply-template", Route::kApplyTemplate},
    Entry{Method::kPost, "/abort_request", Route::kAbortRequest},
    Entry{Method::kPost, "/flush_cache", Route::kFlushCache},
    Entry{Method::kPost, "/pause_generation", Route::kPauseGeneration},
    Entry{Method::kPost, "/continue_generation", Route::kContinueGeneration},
    Entry{Method::kGet, "/server_info", Route::kServerInfo},
    Entry{Method::kGet, "/load", Route::kLoad},
    Entry{Method::kGet, "/metrics", Route::kMetrics},
};

void allow(std::string& allowed, Method method) {
  if (!allowed.empty()) allowed += ", ";
  allowed += to_string(method);
  if (method == Method::kGet) allowed += ", HEAD";
}

}  // namespace

RouteMatch match_route(const HttpRequest& request, std::span<const ExtraRoute> extra_routes) {
  const Method wanted = request.method == Method::kHead ? Method::kGet : request.method;
  RouteMatch match;
  for (const Entry& entry : kRoutes) {
    if (entry.path != request.path) continue;
    match.name = entry.path;
    if (entry.method == wanted) {
      match.route = entry.route;
      return match;
    }
    allow(match.allowed, entry.method);
  }
  for (const ExtraRoute& extra : extra_routes) {
    if (extra.path != request.path) continue;
    match.name = extra.path;
    if (extra.method == wanted) {
      match.route = Route::kExtra;
      match.extra = &extra;
      return match;
    }
    allow(match.allowed, extra.method);
  }
  if (request.path.starts_with(kModelPrefix) && request.path.size() > kModelPrefix.size()) {
    match.name = "/v1/models/{id}";
    match.argument = std::string_view(request.path).substr(kModelPrefix.size());
    if (wanted == Method::kGet) {
      match.route = Route::kModel;
      return match;
    }
    allow(match.allowed, Method::kGet);
  }
  if (match.allowed.empty()) return match;
  match.allowed += ", OPTIONS";
  match.route = request.method == Method::kOptions ? Route::kPreflight : Route::kMethodNotAllowed;
  return match;
}

}  // namespace millrace::server
