#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/http/http.h"
#include "server/service.h"

namespace millrace::server {

enum class Route : uint8_t {
  kCompletions,
  kChatCompletions,
  kModels,
  kModel,
  kHealth,
  kLivez,
  kVersion,
  kTokenize,
  kDetokenize,
  kApplyTemplate,
  kAbortRequest,
  kFlushCache,
  kPauseGeneration,
  kContinueGeneration,
  kServerInfo,
  kLoad,
  kMetrics,
  kOpenapi,
  kEmbeddings,  ///< refused
  kExtra,
  kPreflight,  ///< OPTIONS of any known path, or of "*"
  kNotFound,
  kMethodNotAllowed,
};

/// A route of the front itself.
struct RouteEntry {
  Method method;
  std::string_view path;
  Route route;
  RouteDoc doc;
};

/// Where a request goes. Views point into the request or into static storage.
struct RouteMatch {
  Route route = Route::kNotFound;
  std::string_view name = "other";  ///< for logs and metrics: the path as registered
  std::string_view argument;        ///< of kModel: the model's id
  const ExtraRoute* extra = nullptr;
  std::string allowed;  ///< of kMethodNotAllowed and kPreflight: for the Allow header
  [[nodiscard]] bool is_public() const {
    return route == Route::kHealth || route == Route::kLivez || route == Route::kPreflight ||
           (extra != nullptr && extra->is_public);
  }
  /// It changes what other clients see, or writes to the server's disk.
  [[nodiscard]] bool is_admin() const {
    return route == Route::kFlushCache || route == Route::kPauseGeneration || route == Route::kContinueGeneration ||
           (extra != nullptr && extra->is_admin);
  }
  /// It does so, or ends others' requests: no page of another site may have a browser ask for it.
  [[nodiscard]] bool is_same_site_only() const { return is_admin() || route == Route::kAbortRequest; }
};

/// All but "/v1/models/{id}", whose path has an argument.
[[nodiscard]] std::span<const RouteEntry> routes();
/// HEAD goes where GET goes.
[[nodiscard]] RouteMatch match_route(const HttpRequest& request, std::span<const ExtraRoute> extra_routes);

}  // namespace millrace::server
