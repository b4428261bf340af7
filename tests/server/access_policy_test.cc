#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("The API key guards all but health") {
  server::ServerOptions options;
  options.api_keys = {"secret"};
  TestServer server(options);
  CHECK(server.get("/health").status == 200);
  CHECK(server.get("/livez").status == 200);
  CHECK(server.get("/metrics").status == 401);
  const HttpReply refused = server.get("/v1/models");
  CHECK(refused.status == 401);
  CHECK(ParsedJson(refused.body).string("/error/code") == "invalid_api_key");
  CHECK(refused.header("WWW-Authenticate") == "Bearer");
  CHECK(server.get("/v1/models", "Authorization: Bearer wrong\r\n").status == 401);
  CHECK(server.get("/v1/models", "Authorization: secret\r\n").status == 401);
  CHECK(server.get("/v1/models", "Authorization: Bearer secret\r\n").status == 200);
  CHECK(server.complete(R"({"prompt":"p"})").status == 401);
  CHECK(server.post("/v1/completions", R"({"prompt":"p"})", "authorization: bearer secret\r\n").status == 200);
}

TEST_CASE("Metrics may be open where all else wants a key") {
  server::ServerOptions options;
  options.api_keys = {"secret"};
  options.metrics_public = true;
  TestServer server(options);
  CHECK(server.get("/metrics").status == 200);
  CHECK(server.get("/load").status == 401);
  const ParsedJson openapi(server.get("/openapi.json", "Authorization: Bearer secret\r\n").body);
  CHECK(openapi.size("/paths/~1metrics/get/security") == 0);
}

TEST_CASE("The admin key opens every route and admin routes need it") {
  server::ServerOptions options;
  options.api_keys = {"user"};
  options.admin_api_key = "root";
  TestServer server(options);
  const std::string user = "Authorization: Bearer user\r\n";
  const std::string root = "Authorization: Bearer root\r\n";
  CHECK(server.get("/v1/models", user).status == 200);
  CHECK(server.get("/v1/models", root).status == 200);
  CHECK(server.get("/v1/models").status == 401);
  CHECK(server.post("/flush_cache", "{}", user).status == 401);
  CHECK(server.post("/flush_cache", "{}", root).status == 200);
  CHECK(server.post("/abort_request", R"({"request_id":"none"})", user).status == 404);
  CHECK(server.post("/abort_request", R"({"abort_all":true})", user).status == 401);
  CHECK(server.post("/abort_request", R"({"abort_all":true})", root).status == 200);
}

TEST_CASE("Each of several keys opens the server") {
  server::ServerOptions options;
  options.api_keys = {"one", "another", "third"};
  TestServer server(options);
  const auto status = [&server](std::string_view key) {
    return server.get("/v1/models", fmt::format("Authorization: Bearer {}\r\n", key)).status;
  };
  for (const char* key : {"one", "another", "third"}) CHECK(status(key) == 200);
  for (const char* key : {"", "on", "onee", "fourth", "one, another"}) CHECK(status(key) == 401);
}

TEST_CASE("Without an admin key a client key opens every route") {
  server::ServerOptions options;
  options.api_keys = {"user"};
  TestServer server(options);
  const std::string user = "Authorization: Bearer user\r\n";
  CHECK(server.post("/flush_cache", "{}", user).status == 200);
  CHECK(server.post("/abort_request", R"({"abort_all":true})", user).status == 200);
  CHECK(server.post("/abort_request", R"({"abort_all":true})", "Authorization: Bearer \r\n").status == 401);
}

TEST_CASE("Pages of other sites cannot pause a server without keys") {
  TestServer server;
  const std::string own = fmt::format("127.0.0.1:{}", server.port);
  const auto status = [&](const std::string& headers, std::string_view path = "/pause_generation") {
    Client client(server.port);
    client.send(fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\n{}Content-Length: 0\r\n\r\n", path, own, headers));
    const HttpReply reply = client.read();
    if (reply.status == 403) {
      CHECK_THAT(ParsedJson(reply.body).string("/error/message"), Catch::Contains("pages of other sites"));
    }
    return reply.status;
  };
  const std::string elsewhere = "Origin: http://evil.example\r\n";
  for (const char* path : {"/pause_generation", "/continue_generation", "/flush_cache", "/abort_request"}) {
    CHECK(status(elsewhere, path) == 403);
  }
  CHECK(status("") == 200);
  CHECK(status("Origin: null\r\n") == 403);
  CHECK(status("Origin: http://127.0.0.1:1\r\n") == 403);
  CHECK(status(fmt::format("Origin: http://{}\r\n", own)) == 200);
  for (const char* site : {"same-origin", "none"}) CHECK(status(fmt::format("Sec-Fetch-Site: {}\r\n", site)) == 200);
  for (const char* site : {"cross-site", "same-site"})
    CHECK(status(fmt::format("Sec-Fetch-Site: {}\r\n", site)) == 403);
  CHECK(server.post("/v1/completions", R"({"prompt":"p"})", elsewhere).status == 200);
}

TEST_CASE("The CORS origin and key holders may pause from a page") {
  const std::string elsewhere = "Sec-Fetch-Site: cross-site\r\nOrigin: http://ui.example\r\n";
  server::ServerOptions options;
  options.cors_origin = "http://ui.example";
  CHECK(TestServer(options).post("/pause_generation", "{}", elsewhere).status == 200);
  server::ServerOptions guarded;
  guarded.api_keys = {"user"};
  TestServer server(guarded);
  CHECK(server.post("/pause_generation", "{}", elsewhere).status == 401);
  CHECK(server.post("/pause_generation", "{}", elsewhere + "Authorization: Bearer user\r\n").status == 200);
}

TEST_CASE("Browsers may ask first") {
  TestServer server;
  Client client(server.port);
  client.send("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: h\r\nOrigin: http://a\r\n\r\n");
  const HttpReply reply = client.read();
  CHECK(reply.status == 204);
  CHECK(reply.header("Access-Control-Allow-Origin") == "*");
  CHECK(reply.header("Access-Control-Allow-Methods") == "POST, OPTIONS");
  CHECK(reply.header("Access-Control-Allow-Headers") == "Authorization, *");
  CHECK(client.get("/health").header("Access-Control-Allow-Origin") == "*");
  client.send("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(client.read().header("Allow") == "GET, HEAD, POST, OPTIONS");
  client.send("OPTIONS /nowhere HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(client.read().status == 404);
}
