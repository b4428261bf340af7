#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <stdexcept>

#include "server/eventually.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("Errors of the engine keep their status") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) -> Result<ScriptedReply> {
    return make_error(ErrorCode::kExhausted, "the queue is full (8 requests)");
  };
  const HttpReply full = server.complete(R"({"prompt":"p","stream":true})");
  CHECK(full.status == 429);
  CHECK(full.header("Retry-After") == "1");
  CHECK(ParsedJson(full.body).string("/error/message") == "the queue is full (8 requests)");
  server.engine.on_submit = [](const sched::GenerateRequest&) -> Result<ScriptedReply> {
    return make_error(ErrorCode::kInvalidArgument, "too long");
  };
  CHECK(server.complete(R"({"prompt":"p"})").status == 400);
}

TEST_CASE("An engine that throws gives a 500") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) -> Result<ScriptedReply> {
    throw std::runtime_error("odd");
  };
  const HttpReply reply = server.complete(R"({"prompt":"p"})");
  CHECK(reply.status == 500);
  CHECK(ParsedJson(reply.body).string("/error/type") == "server_error");
}

TEST_CASE("A failure is a status and after the first token an event") {
  TestServer server;
  const Error failure = make_error(ErrorCode::kUnavailable, "stage 1 died");
  server.engine.on_submit = [&](const sched::GenerateRequest&) { return ScriptedReply{.text = "", .error = failure}; };
  for (const char* stream : {"true", "false"}) {
    const HttpReply early = server.complete(fmt::format(R"({{"prompt":"p","stream":{}}})", stream));
    CHECK(early.status == 503);
    CHECK(ParsedJson(early.body).string("/error/message") == "stage 1 died");
  }
  server.engine.on_submit = [&](const sched::GenerateRequest&) {
    return ScriptedReply{.text = "ab", .error = failure};
  };
  CHECK(server.complete(R"({"prompt":"p"})").status == 503);
  const HttpReply late = server.complete(R"({"prompt":"p","stream":true})");
  CHECK(late.status == 200);
  CHECK_FALSE(late.truncated);
  CHECK(ParsedJson(late.events().back()).string("/error/message") == "stage 1 died");
  CHECK(late.events().size() == 3);
}

TEST_CASE("Tokens that come with the failure reach a stream before it") {
  TestServer server;
  const Error failure = make_error(ErrorCode::kUnavailable, "stage 1 died");
  for (const size_t per_event : {1u, 2u, 3u, 100u}) {
    server.engine.on_submit = [&](const sched::GenerateRequest&) {
      return ScriptedReply{.text = "abc", .tokens_per_event = per_event, .error = failure, .error_is_merged = true};
    };
    const HttpReply completion = server.complete(R"({"prompt":"p","stream":true})");
    CHECK(completion.status == 200);
    auto events = completion.events();
    REQUIRE(events.size() >= 2);
    CHECK(ParsedJson(events.back()).string("/error/message") == "stage 1 died");
    events.pop_back();
    std::string text;
    for (const std::string& event : events) text += ParsedJson(event).string("/choices/0/text");
    CHECK(text == "abc");
    CHECK(server.complete(R"({"prompt":"p"})").status == 503);
    CHECK(server.complete(R"({"prompt":"p","stream":true,"stop":"bc"})").events().back() == "[DONE]");
  }
}

TEST_CASE("A disconnect counts as aborted and in the histograms") {
  for (const bool streams : {true, false}) {
    CAPTURE(streams);
    TestServer server;
    server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "ab", .hangs = true}; };
    Client client(server.port);
    client.send(
        post_bytes("/v1/completions", fmt::format(R"({{"prompt":"p","n":2,"max_tokens":9,"stream":{}}})", streams)));
    REQUIRE(server.engine.wait_until_live(2));
    REQUIRE(eventually([&] { return server.engine.events >= 4; }));
    client.close();
    REQUIRE(server.engine.wait_until_idle());
    REQUIRE(eventually([&] {
      return server.get("/metrics").body.find("client_disconnects_total{model_name=\"fake\"} 1\n") != std::string::npos;
    }));
    const std::string metrics = server.get("/metrics").body;
    CHECK_THAT(metrics, Catch::Contains("finished_reason=\"abort\"} 2\n"));
    CHECK_THAT(metrics, Catch::Contains("millrace:e2e_request_latency_seconds_count{model_name=\"fake\"} 1\n"));
    CHECK_THAT(metrics, Catch::Contains("millrace:request_decode_time_seconds_count{model_name=\"fake\"} 1\n"));
    CHECK_THAT(metrics, Catch::Contains("millrace:request_generation_tokens_count{model_name=\"fake\"} 2\n"));
  }
}

TEST_CASE("An X-Request-Id may be in flight several times") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "ab", .hangs = true}; };
  Client client(server.port);
  client.send(post_bytes("/v1/completions", R"({"prompt":"p","stream":true})", "X-Request-Id: trace\r\n"));
  REQUIRE(client.read_until("\"text\":\"b\""));
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "ab"}; };
  const HttpReply second = server.post("/v1/completions", R"({"prompt":"p","n":2})", "X-Request-Id: trace\r\n");
  CHECK(second.status == 200);
  CHECK(second.header("X-Request-Id") == "trace");
  const std::string id = ParsedJson(second.body).string("/id");
  CHECK_THAT(id, Catch::StartsWith("cmpl-trace-"));
  const auto seen = server.engine.seen();
  REQUIRE(seen.size() == 3);
  CHECK(seen[0].id == "cmpl-trace-0");
  CHECK(seen[1].id == id + "-0");
  CHECK(seen[2].id == id + "-1");
  CHECK(ParsedJson(server.post("/abort_request", R"({"rid":"trace"})").body).integer("/aborted") == 1);
  CHECK(ParsedJson(client.read().events().front()).string("/id") == "cmpl-trace");
}

TEST_CASE("More requests than allowed at once are refused") {
  server::ServerOptions options;
  options.max_requests_in_flight = 1;
  TestServer server(options);
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "ab", .hangs = true}; };
  Client client(server.port);
  client.send(post_bytes("/v1/completions", R"({"prompt":"p","stream":true})"));
  REQUIRE(client.read_until("\"text\":\"b\""));
  const HttpReply refused = server.complete(R"({"prompt":"p"})");
  CHECK(refused.status == 429);
  CHECK(ParsedJson(refused.body).string("/error/code") == "rate_limit_exceeded");
  CHECK(ParsedJson(server.get("/load").body).integer("/server_load") == 1);
  CHECK(ParsedJson(server.post("/abort_request", R"({"abort_all":true})").body).integer("/aborted") == 1);
  CHECK(client.read().events().back() == "[DONE]");
}

namespace {

/// Returns how many completions got 429.
int refused_as_busy(const TestServer& server) {
  const std::string metrics = server.get("/metrics").body;
  for (int count = 9; count > 0; --count) {
    const std::string line = fmt::format("route=\"/v1/completions\",status=\"429\"}} {}\n", count);
    if (metrics.find(line) != std::string::npos) return count;
  }
  return 0;
}

}  // namespace

TEST_CASE("Requests prepared on the worker keep to the same limit") {
  server::ServerOptions options;
  options.max_requests_in_flight = 1;
  TestServer server(options);
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "ab", .hangs = true}; };
  const std::string json = fmt::format(R"({{"prompt":"{}","truncate_prompt_tokens":7}})", std::string(1'000'000, 'x'));
  Client first(server.port);
  Client second(server.port);
  Client third(server.port);
  for (Client* client : {&first, &second, &third}) client->send(post_bytes("/v1/completions", json));
  CHECK(eventually([&] { return server.engine.live + refused_as_busy(server) >= 3; }));
  CHECK(server.engine.live == 1);
  CHECK(refused_as_busy(server) == 2);
}
