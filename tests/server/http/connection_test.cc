#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "server/eventually.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

constexpr const char* kHanging = R"({"prompt":"p","max_tokens":400,"stream":true})";

void hang_after(TestServer& server, std::string text) {
  server.engine.on_submit = [text = std::move(text)](const sched::GenerateRequest&) {
    return ScriptedReply{.text = text, .hangs = true};
  };
}

}  // namespace

TEST_CASE("A connection carries many requests streamed or not") {
  TestServer server;
  Client client(server.port);
  for (int i = 0; i < 5; ++i) {
    CHECK(client.post("/v1/completions", R"({"prompt":"p"})").status == 200);
    const HttpReply stream = client.post("/v1/completions", R"({"prompt":"p","stream":true})");
    CHECK(stream.events().back() == "[DONE]");
    CHECK(client.post("/v1/completions", R"({"prompt":7})").status == 400);
    CHECK(client.get("/nowhere").status == 404);
  }
}

TEST_CASE("Pipelined requests are answered in order") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.delay = 2ms}; };
  Client client(server.port);
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    const std::string json = fmt::format(R"({{"prompt":"p","stream":{}}})", i % 2 == 0 ? "true" : "false");
    bytes += post_bytes("/v1/completions", json);
    bytes += "GET /version HTTP/1.1\r\nHost: h\r\n\r\n";
  }
  client.send(bytes);
  for (int i = 0; i < 4; ++i) {
    const HttpReply reply = client.read();
    CHECK(reply.status == 200);
    CHECK(reply.header("Content-Type") == (i % 2 == 0 ? "text/event-stream" : "application/json"));
    CHECK(client.read().status == 200);
  }
  CHECK(server.engine.destroyed_early == 0);
}

TEST_CASE("Pipelined bytes are bounded and the request still ends") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.delay = 5ms}; };
  Client client(server.port);
  std::thread writer([&] {
    client.send(post_bytes("/v1/completions", R"({"prompt":"p","stream":true})"));
    client.send(std::string(256 << 10, 'x'));
  });
  const HttpReply reply = client.read();
  writer.join();
  CHECK(reply.events().back() == "[DONE]");
  CHECK(client.read().status == 431);
}

TEST_CASE("HTTP 1.0 and Connection close end the connection") {
  TestServer server;
  Client old(server.port);
  old.send("GET /version HTTP/1.0\r\n\r\n");
  CHECK(old.read().status == 200);
  CHECK(old.at_end());
  Client stream(server.port);
  const std::string json = R"({"prompt":"p","stream":true})";
  stream.send(fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", json.size(), json));
  const HttpReply reply = stream.read();
  CHECK(reply.header("Transfer-Encoding").empty());
  CHECK(reply.events().back() == "[DONE]");
  Client closing(server.port);
  const HttpReply last = closing.get("/version", "Connection: close\r\n");
  CHECK(last.header("Connection") == "close");
  CHECK(closing.at_end());
}

TEST_CASE("A client that waits for 100 gets it or a refusal at once") {
  TestServer server;
  Client client(server.port);
  const std::string json = R"({"prompt":"p"})";
  client.send(fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", json.size()));
  REQUIRE(client.read().status == 100);
  client.send(json);
  CHECK(client.read().status == 200);
  Client refused(server.port);
  refused.send("POST /nowhere HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n");
  CHECK(refused.read().status == 404);
  CHECK(refused.at_end());
}

TEST_CASE("Bodies and headers beyond the limits are refused readably") {
  server::ServerOptions options;
  options.http.max_body_bytes = 100'000;
  TestServer server(options);
  Client large(server.port);
  std::thread writer([&] { large.send(post_bytes("/v1/completions", std::string(3'000'000, ' '))); });
  const HttpReply reply = large.read();
  CHECK(reply.status == 413);
  CHECK(ParsedJson(reply.body).is_null("/error/code"));
  writer.join();
  Client endless(server.port);
  endless.send("GET / HTTP/1.1\r\nHost: h\r\n");
  for (int i = 0; i < 1000; ++i) {
    if (!endless.send(fmt::format("X-{}: {}\r\n", i, std::string(100, 'y')))) break;
  }
  CHECK(endless.read().status == 431);
  CHECK(endless.at_end());
}

TEST_CASE("Slow headers and slow bodies are cut off") {
  server::ServerOptions options;
  options.http.header_timeout = 150ms;
  options.http.body_timeout = 150ms;
  TestServer server(options);
  Client slow(server.port);
  slow.send("GET /hea");
  std::thread drip([&] {
    while (slow.send("x")) std::this_thread::sleep_for(20ms);  // for as long as the server puts up with it
  });
  CHECK(slow.read().status == 408);
  slow.close_sending();
  drip.join();
  Client body(server.port);
  body.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{");
  CHECK(body.read().status == 408);
}

TEST_CASE("Idle connections are closed also after a request") {
  server::ServerOptions options;
  options.http.idle_timeout = 150ms;
  TestServer server(options);
  Client idle(server.port);
  CHECK(idle.at_end());
  // A client that is held up before it asks is idle too.
  CHECK(eventually([&] {
    Client used(server.port);
    return used.get("/version").status == 200 && used.at_end();
  }));
}

TEST_CASE("Connections beyond the limit are turned away") {
  server::ServerOptions options;
  options.http.max_connections = 2;
  TestServer server(options);
  Client first(server.port);
  Client second(server.port);
  CHECK(first.get("/version").status == 200);
  CHECK(second.get("/version").status == 200);
  Client third(server.port);
  const HttpReply reply = third.read();
  CHECK(reply.status == 503);
  CHECK(!reply.header("X-Request-Id").empty());
  CHECK(third.at_end());
  CHECK_THAT(first.get("/metrics").body, Catch::Contains(R"(route="refused",status="503"} 1)"));
  first.close();
  CHECK(eventually([&] { return Client(server.port).get("/version").status == 200; }));  // its place is given back
}

TEST_CASE("A client that goes away aborts its request") {
  TestServer server;
  hang_after(server, "ab");
  constexpr const char* kWhole = R"({"prompt":"p","max_tokens":400})";
  for (const char* json : {kHanging, kWhole, R"({"prompt":"p","n":5,"max_tokens":400})"}) {
    for (const bool by_reset : {false, true}) {
      Client client(server.port);
      client.send(post_bytes("/v1/completions", json));
      const int count = std::string_view(json).find("\"n\":5") != std::string_view::npos ? 5 : 1;
      REQUIRE(server.engine.wait_until_live(count));
      if (json == kHanging) REQUIRE(client.read_until("\"text\":\"b\""));
      by_reset ? client.reset() : client.close();
      REQUIRE(server.engine.wait_until_idle());
    }
  }
  CHECK(server.engine.destroyed_early == 14);
  CHECK_THAT(server.get("/metrics").body, Catch::Contains("client_disconnects_total{model_name=\"fake\"} 6\n"));
}

TEST_CASE("A client that ends its sending side gets its answers") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.delay = 5ms}; };
  constexpr const char* kWhole = R"({"prompt":"p"})";
  constexpr const char* kStream = R"({"prompt":"p","stream":true})";
  for (const char* json : {kWhole, kStream}) {
    Client client(server.port);
    client.send(post_bytes("/v1/completions", json) + post_bytes("/v1/completions", kStream));
    client.close_sending();
    for (int i = 0; i < 2; ++i) {
      HttpReply reply = client.read();
      if (reply.status == 100) reply = client.read();
      CHECK(reply.status == 200);
      if (i == 1) CHECK(reply.events().back() == "[DONE]");
    }
    CHECK(client.at_end());
    Client old(server.port);
    old.send(fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", strlen(json), json));
    old.close_sending();
    // HTTP/1.0 has no interim responses.
    CHECK(old.read().status == 200);
  }
  CHECK(server.engine.destroyed_early == 0);
}

TEST_CASE("A client that closes after it ended its sending side is gone") {
  server::ServerOptions options;
  options.comment_interval = 20ms;
  TestServer server(options);
  for (const char* shown : {"", "ab"}) {
    hang_after(server, shown);
    Client client(server.port);
    client.send(post_bytes("/v1/completions", kHanging));
    REQUIRE(server.engine.wait_until_live(1));
    if (*shown != '\0') REQUIRE(client.read_until("\"text\":\"b\""));
    client.close_sending();
    REQUIRE(client.read_until("\r\n:\n\n\r\n3\r\n:\n\n\r\n"));
    CHECK(server.engine.live == 1);
    client.close();
    CHECK(server.engine.wait_until_idle());
  }
}

TEST_CASE("A queued request whose client goes away is aborted") {
  TestServer server;
  hang_after(server, "");
  Client client(server.port);
  client.send(post_bytes("/v1/completions", kHanging));
  REQUIRE(server.engine.wait_until_live(1));
  client.close();
  CHECK(server.engine.wait_until_idle());
}

TEST_CASE("A slow reader holds back only itself and is cut off") {
  server::ServerOptions options;
  options.http.write_timeout = 300ms;
  options.http.send_buffer_bytes = 4096;
  TestServer server(options);
  server.engine.info.context_length = 1'000'000;
  server.engine.on_submit = [](const sched::GenerateRequest& request) {
    return ScriptedReply{.text = std::string(request.max_tokens, 'x'), .ends_with_eos = false};
  };
  Client slow(server.port, 4096);
  slow.send(post_bytes("/v1/completions", R"({"prompt":"p","max_tokens":100000,"stream":true})"));
  REQUIRE(server.engine.wait_until_live(1));
  const HttpReply other = server.complete(R"({"prompt":"p","max_tokens":100,"stream":true})");
  CHECK(other.events().back() == "[DONE]");
  CHECK(server.engine.wait_until_idle());
  CHECK(server.engine.destroyed_early == 1);
  CHECK(server.engine.events < 50'000);
}

TEST_CASE("A stream with comments reports a later failure as an event") {
  server::ServerOptions options;
  options.comment_interval = 20ms;
  TestServer server(options);
  server.engine.on_submit = [](const sched::GenerateRequest& request) {
    ScriptedReply reply{.text = "a", .delay = 200ms};
    if (request.prompt.size() > 1) reply = {.text = "", .delay = 200ms, .error = Error{ErrorCode::kTimeout, "late"}};
    return reply;
  };
  const HttpReply good = server.complete(R"({"prompt":"p","stream":true})");
  CHECK_THAT(good.body, Catch::StartsWith(":\n\n"));
  CHECK(good.events().back() == "[DONE]");
  const HttpReply failed = server.complete(R"({"prompt":"pp","stream":true})");
  CHECK(failed.status == 200);
  CHECK_THAT(failed.body, Catch::StartsWith(":\n\n"));
  REQUIRE(failed.events().size() == 1);
  CHECK(ParsedJson(failed.events()[0]).string("/error/type") == "server_error");
  const HttpReply whole = server.complete(R"({"prompt":"pp"})");
  CHECK(whole.status == 504);
}

TEST_CASE("Idle streams carry comments") {
  server::ServerOptions options;
  options.comment_interval = 20ms;
  TestServer server(options);
  hang_after(server, "ab");
  Client client(server.port);
  client.send(post_bytes("/v1/completions", kHanging));
  REQUIRE(client.read_until("\"text\":\"b\""));
  CHECK(client.read_until("\r\n:\n\n\r\n3\r\n:\n\n\r\n"));
}

TEST_CASE("Large prompts are prepared on the worker") {
  TestServer server;
  const std::string text(200'000, 'x');
  const HttpReply reply = server.complete(fmt::format(R"({{"prompt":"{}","truncate_prompt_tokens":7}})", text));
  CHECK(reply.status == 200);
  CHECK(server.engine.seen().back().prompt.size() == 7);
  CHECK(server.complete(fmt::format(R"({{"prompt":"{}"}})", text)).status == 400);
  CHECK(server.complete(std::string(100'000, '[')).status == 400);
}
