#include "server/http/router.h"

#include <array>

namespace millrace::server {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";

constexpr std::array kRoutes = {
    RouteEntry{Method::kPost,
               "/v1/completions",
               Route::kCompletions,
               {"Continue prompts", "CompletionRequest", "CompletionResponse", false, "CompletionEvent"}},
    RouteEntry{
        Method::kPost,
        "/v1/chat/completions",
        Route::kChatCompletions,
        {"Answer a conversation", "ChatCompletionRequest", "ChatCompletionResponse", false, "ChatCompletionEvent"}},
    RouteEntry{Method::kPost, "/v1/embeddings", Route::kEmbeddings, {}},
    RouteEntry{Method::kGet,
               "/v1/models",
               Route::kModels,
               {"The model that is served, by each of its names", "", "ModelList"}},
    RouteEntry{Method::kGet, "/health", Route::kHealth, {"Whether requests are taken", "", "Health"}},
    RouteEntry{Method::kGet, "/ping", Route::kHealth, {"The same as /health", "", "Health"}},
    RouteEntry{Method::kPost, "/ping", Route::kHealth, {"The same as /health", "", "Health"}},
    RouteEntry{Method::kGet, "/livez", Route::kLivez, {"That the server runs, also while it loads", "", "Health"}},
    RouteEntry{Method::kGet, "/version", Route::kVersion, {"The program's version", "", "Version"}},
    RouteEntry{Method::kPost,
               "/tokenize",
               Route::kTokenize,
               {"The tokens of a text or a conversation", "TokenizeRequest", "TokenizeResponse"}},
    RouteEntry{Method::kPost,
               "/detokenize",
               Route::kDetokenize,
               {"The text of tokens", "DetokenizeRequest", "PromptResponse"}},
    RouteEntry{Method::kPost,
               "/apply-template",
               Route::kApplyTemplate,
               {"The text that a conversation becomes", "TemplateRequest", "PromptResponse"}},
    RouteEntry{Method::kPost,
               "/abort_request",
               Route::kAbortRequest,
               {"End a request, or all", "AbortRequest", "AbortResponse"}},
    RouteEntry{Method::kPost,
               "/flush_cache",
               Route::kFlushCache,
               {"Forget all cached prefixes", "FlushRequest", "FlushResponse", true}},
    RouteEntry{Method::kPost,
               "/reset_prefix_cache",
               Route::kFlushCache,
               {"The same as /flush_cache", "FlushRequest", "FlushResponse", true}},
    RouteEntry{Method::kPost,
               "/pause_generation",
               Route::kPauseGeneration,
               {"Compute nothing until /continue_generation", "PauseRequest", "PauseResponse", true}},
    RouteEntry{Method::kPost, "/continue_generation", Route::kContinueGeneration, {"End a pause", "", "PauseResponse"}},
    RouteEntry{Method::kGet, "/server_info", Route::kServerInfo, {"Model, engine, limits", "", "ServerInfo"}},
    RouteEntry{Method::kGet, "/load", Route::kLoad, {"Requests in flight", "", "Load"}},
    RouteEntry{Method::kGet, "/metrics", Route::kMetrics, {"Metrics in Prometheus' form", "", "text/plain"}},
    RouteEntry{Method::kGet, "/openapi.json", Route::kOpenapi, {"This document", "", "AnyObject"}},
};

void allow(std::string& allowed, Method method) {
  if (!allowed.empty()) allowed += ", ";
  allowed += to_string(method);
  if (method == Method::kGet) allowed += ", HEAD";
}

}  // namespace

std::span<const RouteEntry> routes() {
  return kRoutes;
}

RouteMatch match_route(const HttpRequest& request, std::span<const ExtraRoute> extra_routes) {
  const Method wanted = request.method == Method::kHead ? Method::kGet : request.method;
  RouteMatch match;
  if (request.method == Method::kOptions && request.path == "*") {
    return {.route = Route::kPreflight, .name = "*", .allowed = "GET, HEAD, POST, OPTIONS"};
  }
  for (const RouteEntry& entry : kRoutes) {
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
