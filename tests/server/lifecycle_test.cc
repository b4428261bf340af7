#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "base/log.h"
#include "server/test_server.h"
#include "support/captured_log.h"
#include "support/hanging_lookup.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

TEST_CASE("A port in use is a clear error") {
  TestServer server;
  server::ServerOptions options;
  options.http.port = server.port;
  server::Service service;
  service.engine = &server.engine;
  service.tokenizer = byte_tokenizer();
  server::Server second(options, service);
  auto started = second.start();
  REQUIRE(started.has_error());
  CHECK(started.error().code == ErrorCode::kUnavailable);
  CHECK_THAT(started.error().message, Catch::Contains(std::to_string(server.port)) && Catch::Contains("in use"));
}

TEST_CASE("A host that is unknown or not local is an error") {
  FakeEngine engine;
  server::Service service;
  service.engine = &engine;
  service.tokenizer = byte_tokenizer();
  server::ServerOptions options;
  options.http.host = "256.256.256.256";
  CHECK_THAT(server::Server(options, service).start().error().message, Catch::Contains("'256.256.256.256'"));
  options.http.host = "2001:db8::1";  // for documents only
  options.http.port = 7;
  CHECK_THAT(server::Server(options, service).start().error().message,
             Catch::StartsWith("cannot listen on [2001:db8::1]:7: "));
}

TEST_CASE("A slow lookup of the host is logged and can be stopped") {
  log::configure(log::Level::kWarn, false);  // other tests want less
  const CapturedLog captured;
  HangingLookup resolver("front.example");
  FakeEngine engine;
  server::Service service;
  service.engine = &engine;
  service.tokenizer = byte_tokenizer();
  server::ServerOptions options;
  options.http.host = "front.example";
  options.http.port = 0;
  server::Server stopped(options, service);
  server::Server front(options, service);
  std::stop_source stop;
  auto stopping = std::async(std::launch::async, [&] { return stopped.start(stop.get_token()); });
  auto starting = std::async(std::launch::async, [&] { return front.start(); });
  while (captured.count("--host: the name 'front.example' has not been looked up yet") < 2)
    std::this_thread::sleep_for(1ms);
  stop.request_stop();
  CHECK(stopping.get().error().code == ErrorCode::kAborted);
  resolver.resolve_to("127.0.0.1");
  const auto port = starting.get();
  REQUIRE(port.has_value());
  CHECK(Client(*port).get("/version").status == 200);
}

TEST_CASE("A stop lets a stream end and closes idle connections") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.delay = 20ms}; };
  Client idle(server.port);
  CHECK(idle.get("/version").status == 200);
  Client client(server.port);
  client.send(post_bytes("/v1/completions", R"({"prompt":"p","stream":true})"));
  REQUIRE(client.read_until("\"text\":\"H\""));
  std::thread stopper([&] { server.front->stop(60s); });
  CHECK(idle.at_end());
  const HttpReply reply = client.read();
  stopper.join();
  CHECK(reply.events().back() == "[DONE]");
  CHECK_FALSE(reply.truncated);
  CHECK(client.at_end());
}

TEST_CASE("A response during a stop has Connection close") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.delay = 20ms}; };
  Client idle(server.port);
  CHECK(idle.get("/version").header("Connection").empty());
  Client client(server.port);
  client.send(post_bytes("/v1/completions", R"({"prompt":"p"})"));
  REQUIRE(server.engine.wait_until_live(1));
  std::thread stopper([&] { server.front->stop(60s); });
  CHECK(idle.at_end());
  const HttpReply reply = client.read();
  stopper.join();
  CHECK(reply.status == 200);
  CHECK(reply.header("Connection") == "close");
}

TEST_CASE("A request with an incomplete body gets 503 on a stop") {
  TestServer server;
  Client idle(server.port);
  CHECK(idle.get("/version").status == 200);
  Client client(server.port);
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
      "Content-Length: 1000\r\n\r\n");
  REQUIRE(client.read().status == 100);
  client.send(R"({"prompt":)");
  std::thread stopper([&] { server.front->stop(60s); });
  CHECK(idle.at_end());
  const HttpReply reply = client.read();
  client.send(std::string(100, ' '));  // what is still sent does not take the answer away
  client.close();
  stopper.join();
  CHECK(reply.status == 503);
  CHECK(reply.header("Retry-After") == "1");
  CHECK(reply.header("Connection") == "close");
}

TEST_CASE("What does not end in time gets an error and is aborted") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "ab", .hangs = true}; };
  Client streaming(server.port);
  streaming.send(post_bytes("/v1/completions", R"({"prompt":"p","stream":true})"));
  REQUIRE(streaming.read_until("\"text\":\"b\""));
  Client whole(server.port);
  whole.send(post_bytes("/v1/completions", R"({"prompt":"p"})"));
  REQUIRE(server.engine.wait_until_live(2));
  std::thread stopper([&] { server.front->stop(50ms); });
  const HttpReply stream = streaming.read();
  const HttpReply answer = whole.read();
  stopper.join();
  CHECK(ParsedJson(stream.events().back()).string("/error/type") == "server_error");
  CHECK(answer.status == 503);
  CHECK(server.engine.live == 0);
  CHECK(server.engine.destroyed_early == 2);
}

TEST_CASE("A client that takes nothing cannot hold up the stop") {
  server::ServerOptions options;
  options.http.send_buffer_bytes = 4096;
  TestServer server(options);
  server.engine.info.context_length = 1'000'000;
  server.engine.on_submit = [](const sched::GenerateRequest& request) {
    return ScriptedReply{.text = std::string(request.max_tokens, 'x'), .ends_with_eos = false};
  };
  Client stuck(server.port, 4096);
  stuck.send(post_bytes("/v1/completions", R"({"prompt":"p","max_tokens":100000,"stream":true})"));
  REQUIRE(server.engine.wait_until_live(1));
  std::this_thread::sleep_for(50ms);
  Client half(server.port);
  half.send("GET /health HT");
  server.front->stop(10ms);
  CHECK(server.engine.live == 0);
}

TEST_CASE("Many clients at once some of which leave all end") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.delay = 1ms}; };
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 15; ++i) {
        Client client(server.port);
        client.send(post_bytes("/v1/completions", R"({"prompt":["p","q"],"stream":true})"));
        if ((i + thread) % 3 == 0) {
          (void)client.read_until("data: ");
          continue;
        }
        if (client.read().events().back() == "[DONE]") ++done;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(done == 40);
  CHECK(server.engine.wait_until_idle());
}
