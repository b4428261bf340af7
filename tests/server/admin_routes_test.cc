#include <catch2/catch.hpp>
#include <chrono>

#include "server/eventually.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

TEST_CASE("The cache is flushed and generation pauses and resumes") {
  TestServer server;
  CHECK(ParsedJson(server.post("/reset_prefix_cache", "").body).at("/flushed").get_bool().value());
  CHECK(server.engine.flushes == 1);
  CHECK(ParsedJson(server.post("/pause_generation", "").body).at("/paused").get_bool().value());
  CHECK(server.engine.paused.has_value());
  CHECK_FALSE(ParsedJson(server.post("/continue_generation", "").body).at("/paused").get_bool().value());
  CHECK_FALSE(server.engine.paused.has_value());
}

namespace {

/// Waits until `count` flushes hang in the engine; returns false after a minute.
bool wait_until_hanging(const FakeEngine& engine, int count) {
  return eventually([&] { return engine.hanging_flushes == count; });
}

}  // namespace

TEST_CASE("A waiting flush ends with its client and with the server") {
  TestServer server;
  CHECK(server.post("/flush_cache", "{}").status == 200);
  server.engine.flush_hangs = true;
  Client client(server.port);
  client.send(post_bytes("/flush_cache", R"({"timeout":3600})"));
  REQUIRE(wait_until_hanging(server.engine, 1));
  client.close();
  REQUIRE(wait_until_hanging(server.engine, 0));
  Client other(server.port);
  other.send(post_bytes("/flush_cache", R"({"timeout":3600})"));
  REQUIRE(wait_until_hanging(server.engine, 1));
  server.front->stop(50ms);
  CHECK(server.engine.hanging_flushes == 0);
  CHECK(server.engine.flushes == 1);
}

TEST_CASE("A request can be aborted by its id") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "ab", .hangs = true}; };
  Client client(server.port);
  client.send(post_bytes("/v1/completions", R"({"prompt":"p","stream":true,"request_id":"mine","n":2})"));
  REQUIRE(client.read_until("\"text\":\"b\""));
  CHECK(server.complete(R"({"prompt":"p","request_id":"mine"})").status == 409);
  CHECK(server.post("/abort_request", R"({"request_id":"other"})").status == 404);
  CHECK(server.post("/abort_request", "{}").status == 400);
  CHECK(ParsedJson(server.post("/abort_request", R"({"rid":"mine"})").body).integer("/aborted") == 2);
  const HttpReply reply = client.read();
  const auto events = reply.events();
  CHECK(events.back() == "[DONE]");
  CHECK(ParsedJson(events[events.size() - 2]).string("/choices/0/finish_reason") == "abort");
  CHECK(ParsedJson(events.front()).string("/id") == "cmpl-mine");
}

TEST_CASE("A request can be aborted by the rid that it gave") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "ab", .hangs = true}; };
  Client client(server.port);
  client.send(post_bytes("/v1/completions", R"({"prompt":"p","stream":true,"rid":"mine"})"));
  REQUIRE(client.read_until("\"text\":\"b\""));
  CHECK(ParsedJson(server.post("/abort_request", R"({"rid":"mine"})").body).integer("/aborted") == 1);
  CHECK(client.read().events().back() == "[DONE]");
}
