#include "server/router.h"

#include <catch2/catch.hpp>

using namespace millrace::server;

namespace {

Router sample_router() {
  Router router;
  router.add({.path = "/load", .is_probe = true});
  router.add({.method = Method::kPost, .path = "/load", .is_probe = true});
  router.add({.method = Method::kPost, .path = "/v1/completions"});
  router.add({.path = "/v1/models"});
  router.add({.path = "/v1/models/{id}"});
  return router;
}

HttpRequest request(Method method, std::string path) {
  HttpRequest head;
  head.method = method;
  head.path = std::move(path);
  return head;
}

}  // namespace

TEST_CASE("The first path that fits has the request") {
  Router router;
  for (const char* path : {"/a/{id}/stop", "/a/{id}"}) {
    router.add({.method = Method::kPost, .path = path, .handler = [](const HttpRequest&) { return HttpResponse(); }});
  }
  router.add({.method = Method::kGet, .path = "/a/{id}", .handler = [](const HttpRequest&) { return HttpResponse(); }});
  HttpRequest request;
  request.method = Method::kPost;
  request.path = "/a/1/stop";
  CHECK(router.match(request).route == &router.routes()[0]);
  request.method = Method::kGet;
  CHECK(router.match(request).route == nullptr);
  CHECK(router.match(request).allowed == "POST, OPTIONS");
  request.path = "/a/1/2";
  CHECK(router.match(request).name == "/a/{id}");
  for (const char* path : {"/a//stop", "/a/", "/a"}) {
    request.path = path;
    CHECK(router.match(request).name != "/a/{id}/stop");
  }
}

TEST_CASE("A route is found by method and path and HEAD as GET") {
  const Router router = sample_router();
  for (const Method method : {Method::kGet, Method::kHead}) {
    const RouteMatch match = router.match(request(method, "/load"));
    REQUIRE(match.route != nullptr);
    CHECK(match.route->method == Method::kGet);
    CHECK(match.name == "/load");
    CHECK(match.is_probe);
  }
  CHECK(router.match(request(Method::kPost, "/load")).route->method == Method::kPost);
}

TEST_CASE("The last segment of a path may be an argument") {
  const Router router = sample_router();
  for (const char* path : {"/v1/models/m", "/v1/models/org/model"}) {
    const RouteMatch match = router.match(request(Method::kGet, path));
    REQUIRE(match.route != nullptr);
    CHECK(match.name == "/v1/models/{id}");
  }
  CHECK(router.match(request(Method::kGet, "/v1/models")).name == "/v1/models");
  CHECK(router.match(request(Method::kGet, "/v1/models/")).route == nullptr);
}

TEST_CASE("A path without the method names those that it has") {
  const Router router = sample_router();
  const RouteMatch match = router.match(request(Method::kDelete, "/load"));
  CHECK(match.route == nullptr);
  CHECK(match.allowed == "GET, HEAD, POST, OPTIONS");
  CHECK(match.is_probe);
  CHECK(router.match(request(Method::kGet, "/v1/completions")).allowed == "POST, OPTIONS");
}

TEST_CASE("An unknown path has neither route nor methods nor name") {
  const RouteMatch match = sample_router().match(request(Method::kOptions, "/nowhere"));
  CHECK(match.route == nullptr);
  CHECK(match.allowed.empty());
  CHECK(match.name == "other");
  CHECK_FALSE(match.is_preflight);
}

TEST_CASE("OPTIONS of a known path or of the server is a preflight") {
  const Router router = sample_router();
  const RouteMatch match = router.match(request(Method::kOptions, "/v1/completions"));
  CHECK(match.is_preflight);
  CHECK(match.allowed == "POST, OPTIONS");
  CHECK(router.match(request(Method::kOptions, "*")).is_preflight);
}
