#include <catch2/catch.hpp>

#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("The server reports its models health version and load") {
  TestServer server;
  CHECK(ParsedJson(server.get("/v1/models").body).string("/data/0/id") == "fake");
  CHECK(ParsedJson(server.get("/v1/models").body).integer("/data/0/max_model_len") == FakeEngine::kContext);
  CHECK(ParsedJson(server.get("/v1/models/fake").body).string("/object") == "model");
  CHECK(server.get("/v1/models/other").status == 404);
  CHECK(server.get("/health").status == 200);
  CHECK(server.get("/ping").status == 200);
  CHECK(server.post("/ping", "").status == 200);
  CHECK(ParsedJson(server.get("/version").body).has("/version"));
  CHECK(ParsedJson(server.get("/load").body).integer("/server_load") == 0);
  const ParsedJson info(server.get("/server_info").body);
  CHECK(info.string("/model/architecture") == "FakeForCausalLM");
  CHECK(info.size("/model/concurrency") == 2);
  CHECK(info.integer("/model/concurrency/0/tokens") == 1024);
  CHECK(info.integer("/model/concurrency/0/requests") == 4);
  CHECK(info.string("/model/concurrency/0/limit") == "states");
  CHECK(info.string("/model/concurrency/1/limit") == "tokens");
  CHECK(info.integer("/limits/max_connections") == 4096);
  CHECK(info.integer("/connections") == 1);
}

TEST_CASE("A model with several names answers to each by that name") {
  server::ServerOptions options;
  options.other_model_names = {"org/fake", "third"};
  TestServer server(options);
  const ParsedJson models(server.get("/v1/models").body);
  REQUIRE(models.size("/data") == 3);
  CHECK(models.string("/data/0/id") == "fake");
  CHECK(models.string("/data/1/id") == "org/fake");
  CHECK(models.string("/data/1/root") == "fake");
  CHECK(ParsedJson(server.get("/v1/models/org/fake").body).string("/id") == "org/fake");
  CHECK(ParsedJson(server.complete(R"({"model":"third","prompt":"p"})").body).string("/model") == "third");
  CHECK(ParsedJson(server.complete(R"({"prompt":"p"})").body).string("/model") == "fake");
  const HttpReply unknown = server.complete(R"({"model":"fourth","prompt":"p"})");
  CHECK(unknown.status == 404);
  CHECK(ParsedJson(unknown.body).string("/error/code") == "model_not_found");
  CHECK_THAT(ParsedJson(unknown.body).string("/error/message"),
             Catch::EndsWith("has 'fake', also called org/fake, third"));
}

TEST_CASE("A model name that is given twice is listed once") {
  server::ServerOptions options;
  options.other_model_names = {"fake", "second", "fake", "second"};
  TestServer server(options);
  const ParsedJson models(server.get("/v1/models").body);
  REQUIRE(models.size("/data") == 2);
  CHECK(models.string("/data/0/id") == "fake");
  CHECK(models.string("/data/1/id") == "second");
  CHECK_THAT(ParsedJson(server.get("/v1/models/third").body).string("/error/message"),
             Catch::EndsWith("has 'fake', also called second"));
}

TEST_CASE("HEAD answers as GET without the body") {
  TestServer server;
  Client client(server.port);
  client.send("HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
  const HttpReply head = client.read(true);
  CHECK(head.status == 200);
  CHECK(std::stoul(head.header("Content-Length")) > 10);
  CHECK(client.get("/health").status == 200);
}

TEST_CASE("Health says that generation is paused and stays 200") {
  TestServer server;
  const auto status_of = [&](const char* path) {
    const HttpReply reply = server.get(path);
    CHECK(reply.status == 200);
    return ParsedJson(reply.body).string("/status");
  };
  CHECK(status_of("/health") == "ok");
  CHECK(server.post("/pause_generation", R"({"mode":"in_place"})").status == 200);
  CHECK(status_of("/health") == "paused");
  CHECK(status_of("/ping") == "paused");
  CHECK(status_of("/livez") == "ok");
  server.engine.ready = false;  // a reason to take no requests is worse than a pause
  CHECK(server.get("/health").status == 503);
  server.engine.ready = true;
  CHECK(server.post("/continue_generation", "").status == 200);
  CHECK(status_of("/health") == "ok");
}

TEST_CASE("Health says why the engine is not ready") {
  TestServer server;
  server.engine.ready = false;
  CHECK(server.get("/livez").status == 200);
  const HttpReply health = server.get("/health");
  CHECK(health.status == 503);
  CHECK(ParsedJson(health.body).string("/error/message") == "stage 1 is silent");
  const HttpReply refused = server.complete(R"({"prompt":"p"})");
  CHECK(refused.status == 503);
  CHECK(ParsedJson(refused.body).string("/error/type") == "server_error");
  CHECK(server.complete(R"({"prompt":"p","stream":true})").status == 503);
}
