#include "server/http/http_server.h"

#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "server/client.h"

using namespace millrace;
using namespace millrace::test;
using namespace millrace::server;
using namespace std::chrono_literals;

namespace {

constexpr size_t kLarge = 3'000'000;

/// Answers a few paths, and nothing that knows a model.
class SampleHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> check_head(const HttpRequest& head) override {
    if (head.path == "/refused") return make_error({403, "no"}, nullptr);
    return std::nullopt;
  }
  asio::awaitable<void> handle(HttpRequest request, Connection& connection) override {
    if (request.path == "/stream") {
      co_await stream(connection);
      co_return;
    }
    HttpResponse response;
    response.content_type = "text/plain";
    response.headers = {{"X-Sample", "first"}, {"X-Sample", "second"}};
    response.body = request.path == "/large" ? std::string(kLarge, 'x') : request.path;
    if (request.path == "/empty") response.status = 204;
    if (request.path == "/last") connection.close_after_response();
    (void)co_await connection.send(response);
  }
  HttpResponse make_error(const HttpError& error, const HttpRequest*) override {
    HttpResponse response;
    response.status = error.status;
    response.body = error.message;
    return response;
  }
  void on_refused_request(HttpResponse& response) override { response.headers.emplace_back("X-Refused", "request"); }
  void on_refused_connection(HttpResponse& response) override {
    response.headers.emplace_back("X-Refused", "connection");
  }
  void end_requests(std::chrono::milliseconds /*waited*/) override { ++ended; }

  std::atomic<int> ended{0};

 private:
  static asio::awaitable<void> stream(Connection& connection) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    bool sent = co_await connection.begin_stream(head);
    for (const size_t size : {size_t{1}, kLarge, size_t{17}}) {
      std::string events(size, 'y');
      if (sent) sent = co_await connection.write_stream(events);
    }
    if (sent) (void)co_await connection.end_stream();
  }
};

/// An HttpServer over the sample handler, stopped at the end.
struct SampleServer {
  explicit SampleServer(HttpOptions wanted = {}) : options(std::move(wanted)) {
    options.port = 0;
    port = http.start({}).value();
  }
  ~SampleServer() {
    http.stop(0ms);
    thread.join();
  }

  HttpOptions options;
  HttpUsage usage{.bodies = BodyBudget(options.max_bodies_bytes)};
  SampleHandler handler;
  async::IoThread thread{"http"};
  HttpServer http{thread, options, usage, handler};
  uint16_t port = 0;
};

}  // namespace

TEST_CASE("A response has its length type date and all its headers") {
  SampleServer server;
  Client client(server.port);
  const HttpReply reply = client.get("/path");
  CHECK_THAT(reply.head, Catch::StartsWith("HTTP/1.1 200 OK\r\n"));
  CHECK(reply.body == "/path");
  CHECK(reply.header("Content-Length") == "5");
  CHECK(reply.header("Content-Type") == "text/plain");
  CHECK_THAT(reply.header("Server"), Catch::StartsWith("millrace/"));
  CHECK_THAT(reply.header("Date"), Catch::EndsWith(" GMT"));
  CHECK_THAT(reply.head, Catch::Contains("X-Sample: first\r\n") && Catch::Contains("X-Sample: second\r\n"));
  CHECK(reply.header("Connection").empty());
  CHECK(client.get("/last").header("Connection") == "close");
  CHECK(client.at_end());
}

TEST_CASE("HEAD and 204 have no body and the connection goes on") {
  SampleServer server;
  Client client(server.port);
  client.send("HEAD /large HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(client.read(true).header("Content-Length") == std::to_string(kLarge));
  const HttpReply empty = client.get("/empty");
  CHECK(empty.status == 204);
  CHECK(empty.header("Content-Length").empty());
  CHECK(empty.header("Content-Type").empty());
  CHECK(client.get("/path").body == "/path");
}

TEST_CASE("What the socket does not take at once arrives whole") {
  HttpOptions options;
  options.send_buffer_bytes = 16'384;
  SampleServer server(options);
  Client client(server.port, 16'384);
  for (int i = 0; i < 2; ++i) {
    CHECK(client.get("/large").body == std::string(kLarge, 'x'));
    const HttpReply stream = client.get("/stream");
    CHECK(stream.header("Transfer-Encoding") == "chunked");
    CHECK(stream.body == std::string(1 + kLarge + 17, 'y'));
    CHECK_FALSE(stream.truncated);
  }
}

TEST_CASE("HTTP/1.0 gets its stream up to the end of the connection") {
  SampleServer server;
  Client client(server.port);
  client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const HttpReply stream = client.read();
  CHECK(stream.header("Transfer-Encoding").empty());
  CHECK(stream.header("Connection") == "close");
  CHECK(stream.body.size() == 1 + kLarge + 17);
  Client whole(server.port);
  whole.send("GET /path HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  CHECK(whole.read().header("Connection") == "keep-alive");
  CHECK(whole.get("/path").status == 200);
}

TEST_CASE("A malformed request and a refused head end the connection") {
  SampleServer server;
  Client garbage(server.port);
  garbage.send("NONSENSE\r\n\r\n");
  const HttpReply malformed = garbage.read();
  CHECK(malformed.status == 400);
  CHECK(malformed.header("X-Refused") == "request");
  CHECK(malformed.header("Connection") == "close");
  CHECK(garbage.at_end());
  Client refused(server.port);
  refused.send("POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n");
  CHECK(refused.read().status == 403);
  CHECK(refused.at_end());
}

TEST_CASE("A connection beyond the limit is told so") {
  HttpOptions options;
  options.max_connections = 1;
  SampleServer server(options);
  Client first(server.port);
  CHECK(first.get("/path").status == 200);
  Client second(server.port);
  const HttpReply reply = second.read();
  CHECK(reply.status == 503);
  CHECK(reply.header("X-Refused") == "connection");
  CHECK(second.at_end());
}

TEST_CASE("A stop closes idle connections and ends no request") {
  SampleServer server;
  Client client(server.port);
  CHECK(client.get("/path").status == 200);
  server.http.stop(60s);
  CHECK(client.at_end());
  CHECK(server.handler.ended == 0);
}
