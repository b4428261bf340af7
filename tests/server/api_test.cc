#include <catch2/catch.hpp>

#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("Unknown routes methods media types and models are refused") {
  TestServer server;
  const HttpReply unknown = server.get("/nowhere");
  CHECK(unknown.status == 404);
  CHECK(ParsedJson(unknown.body).is_null("/error/code"));
  const HttpReply embeddings = server.post("/v1/embeddings", R"({"input":"a"})");
  CHECK(embeddings.status == 400);
  CHECK_THAT(ParsedJson(embeddings.body).string("/error/message"), Catch::Contains("not supported"));
  const HttpReply method = server.get("/v1/completions");
  CHECK(method.status == 405);
  CHECK(method.header("Allow") == "POST, OPTIONS");
  CHECK(server.post("/metrics", "{}").header("Allow") == "GET, HEAD, OPTIONS");
  Client client(server.port);
  client.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  CHECK(client.read().status == 415);
  const HttpReply packed = server.post("/v1/completions", "{}", "Content-Encoding: gzip\r\n");
  CHECK(packed.status == 415);
  CHECK_THAT(ParsedJson(packed.body).string("/error/message"), Catch::Contains("gzip"));
  CHECK(server.post("/v1/completions", R"({"prompt":"p"})", "Content-Encoding: identity\r\n").status == 200);
  const HttpReply model = server.complete(R"({"model":"other","prompt":"p"})");
  CHECK(model.status == 404);
  CHECK(ParsedJson(model.body).string("/error/param") == "model");
  CHECK(server.complete("{").status == 400);
}

TEST_CASE("Every response has the request id of the client or a new one") {
  TestServer server;
  CHECK(server.get("/version", "X-Request-Id: mine-1\r\n").header("X-Request-Id") == "mine-1");
  const std::string own = server.get("/version").header("X-Request-Id");
  CHECK(own.size() == 32);
  CHECK(server.get("/version").header("X-Request-Id") != own);
  CHECK(server.get("/version", "X-Request-Id: two words\r\n").header("X-Request-Id").size() == 32);
  const HttpReply reply = server.complete(R"({"prompt":"p"})");
  CHECK(ParsedJson(reply.body).string("/id") == "cmpl-" + reply.header("X-Request-Id"));
  Client garbage(server.port);
  garbage.send("NONSENSE\r\n\r\n");
  CHECK(garbage.read().header("X-Request-Id").size() == 32);
}
