#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/route.h"

namespace millrace::server {

/// The route of a request. Views point into the Router.
struct RouteMatch {
  const Route* route = nullptr;                               ///< null: not found, method not allowed, or a preflight
  std::string_view name = "other";                            ///< for logs and metrics: the path as registered
  bool is_preflight = false;                                  ///< OPTIONS of a registered path, or of "*"
  bool is_probe = false;                                      ///< the path's routes are probes
  openai::ErrorDialect make_error = &openai::error_response;  ///< of the path's routes
  std::string allowed = {};  ///< without a route: the methods of the path, for the Allow header; empty: no such path
};

/// The table of routes. Owned by Api, which fills it before the server starts; its executor only.
class Router {
 public:
  /// Adds a route; no other may have its method and path.
  void add(Route route);
  [[nodiscard]] std::span<const Route> routes() const { return routes_; }
  /// Finds the route of `request`; HEAD goes where GET goes. Of several paths that fit, the first one that was added
  /// has the request.
  [[nodiscard]] RouteMatch match(const HttpRequest& request) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace millrace::server
