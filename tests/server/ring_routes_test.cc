#include <catch2/catch.hpp>

#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("Without a ring the live page is served but no data") {
  TestServer server;
  const HttpReply page = server.get("/");
  CHECK(page.status == 200);
  CHECK(page.header("Content-Type") == "text/html; charset=utf-8");
  CHECK(page.header("X-Frame-Options") == "DENY");
  CHECK(server.get("/live?since=0").status == 503);
  CHECK(server.get("/cost_model").status == 503);
  CHECK(server.post("/start_profile", "").status == 503);
  CHECK(server.post("/stop_profile", "").status == 409);
  CHECK(server.get("/metrics").body.find("millrace:window_size") == std::string::npos);
}

TEST_CASE("Profiles require the admin key and the page none") {
  server::ServerOptions options;
  options.api_keys = {"user"};
  options.admin_api_key = "root";
  TestServer server(options);
  CHECK(server.get("/").status == 200);
  CHECK(server.get("/live").status == 401);
  for (const char* path : {"/start_profile", "/stop_profile"}) {
    CHECK(server.post(path, "", "Authorization: Bearer user\r\n").status == 401);
  }
  CHECK(server.post("/stop_profile", "", "Authorization: Bearer root\r\n").status == 409);
}
