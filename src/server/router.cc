#include "server/router.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::server {
namespace {

constexpr std::string_view kArgument = "{id}";

bool has_path(const Route& route, std::string_view path) {
  if (route.path == path) return true;
  const size_t argument = route.path.find(kArgument);
  if (argument == std::string::npos) return false;
  const std::string_view prefix = std::string_view(route.path).substr(0, argument);
  const std::string_view suffix = std::string_view(route.path).substr(argument + kArgument.size());
  return path.size() > prefix.size() + suffix.size() && path.starts_with(prefix) && path.ends_with(suffix);
}

void allow(std::string& allowed, Method method) {
  if (!allowed.empty()) allowed += ", ";
  allowed += to_string(method);
  if (method == Method::kGet) allowed += ", HEAD";
}

}  // namespace

void Router::add(Route route) {
  const auto is_same = [&](const Route& other) { return other.method == route.method && other.path == route.path; };
  CHECK(std::ranges::none_of(routes_, is_same), "the route {} {} is added twice", to_string(route.method), route.path);
  routes_.push_back(std::move(route));
}

RouteMatch Router::match(const HttpRequest& request) const {
  if (request.method == Method::kOptions && request.path == "*") {
    return {.name = "*", .is_preflight = true, .allowed = "GET, HEAD, POST, OPTIONS"};
  }
  const Method wanted = request.method == Method::kHead ? Method::kGet : request.method;
  RouteMatch match;
  for (const Route& route : routes_) {
    if (!has_path(route, request.path)) continue;
    // The first path that was added gets the request where several fit.
    if (!match.allowed.empty() && route.path != match.name) continue;
    match.name = route.path;
    match.is_probe = route.is_probe;
    match.make_error = route.make_error;
    if (route.method == wanted) {
      match.route = &route;
      match.allowed.clear();
      return match;
    }
    allow(match.allowed, route.method);
  }
  if (match.allowed.empty()) return match;
  match.allowed += ", OPTIONS";
  match.is_preflight = request.method == Method::kOptions;
  return match;
}

}  // namespace millrace::server
