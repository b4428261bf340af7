#include "server/http/body_budget.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "server/eventually.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;
using server::BodyBudget;

namespace {

constexpr size_t kMib = 1u << 20;
constexpr size_t kLarge = 900'000;

server::ServerOptions narrow_options() {
  server::ServerOptions options;
  options.http.max_body_bytes = kMib;
  options.http.max_bodies_bytes = kMib;
  options.http.send_buffer_bytes = 16'384;
  return options;
}

/// Returns a completion's body of exactly `bytes` bytes.
std::string padded(size_t bytes, std::string_view prompt = "p") {
  std::string json = fmt::format(R"({{"prompt":"{}","stream":true,"user":")", prompt);
  json.append(bytes - json.size() - 2, 'x');
  return json + "\"}";
}

std::string head_for(size_t body_bytes, std::string_view more_headers = {}) {
  return fmt::format("POST /v1/completions HTTP/1.1\r\nHost: h\r\n{}Content-Length: {}\r\n\r\n", more_headers,
                     body_bytes);
}

size_t used_bytes(const TestServer& server) {
  const std::string metrics = server.get("/metrics").body;
  const std::string name = "\nmillrace:http_body_bytes{model_name=\"fake\"} ";
  return std::stoul(metrics.substr(metrics.find(name) + name.size()));
}

bool eventually_uses(const TestServer& server, size_t bytes) {
  return eventually([&] { return used_bytes(server) == bytes; });
}

/// Sends the header of a large body, and its first `bytes` bytes.
void send_all_but(Client& client, const std::string& body, size_t bytes) {
  client.send(head_for(body.size()) + body.substr(0, bytes));
}

void check_refusal(const HttpReply& reply) {
  CHECK(reply.status == 503);
  CHECK(reply.header("Retry-After") == "1");
  CHECK_THAT(ParsedJson(reply.body).string("/error/message"), Catch::Contains("(--max-bodies-mib)"));
}

}  // namespace

TEST_CASE("A budget charges beyond the free bytes and one may exceed it") {
  BodyBudget budget(1000);
  const size_t free_bytes = BodyBudget::kUnchargedBytes;
  BodyBudget::Reservation first(budget);
  CHECK(first.resize(free_bytes));
  CHECK(budget.used_bytes() == 0);
  CHECK(first.resize(free_bytes + 5000));
  BodyBudget::Reservation second(budget);
  CHECK(budget.has_room(free_bytes));
  CHECK_FALSE(budget.has_room(free_bytes + 1));
  CHECK(second.resize(free_bytes));
  CHECK_FALSE(second.resize(free_bytes + 1));
  CHECK(first.resize(free_bytes + 400));
  CHECK(second.resize(free_bytes + 600));
  CHECK_FALSE(first.resize(free_bytes + 401));
  CHECK(first.resize(free_bytes + 399));
  BodyBudget::Reservation third = std::move(second);
  CHECK(budget.used_bytes() == 999);
  third = BodyBudget::Reservation();
  CHECK(budget.used_bytes() == 399);
}

TEST_CASE("Large bodies share a budget and small ones always fit") {
  TestServer server(narrow_options());
  const std::string body = padded(kLarge);
  Client large(server.port);
  send_all_but(large, body, 800'000);
  REQUIRE(eventually_uses(server, 800'000 - BodyBudget::kUnchargedBytes));
  Client patient(server.port);
  patient.send(head_for(body.size(), "Expect: 100-continue\r\n"));
  check_refusal(patient.read());
  CHECK(patient.at_end());
  check_refusal(server.complete(body));
  CHECK(server.complete(R"({"prompt":"p"})").status == 200);
  CHECK(server.complete(padded(BodyBudget::kUnchargedBytes)).status == 200);
  CHECK(server.get("/health").status == 200);
  large.send(body.substr(800'000));
  CHECK(large.read().status == 200);
  CHECK(eventually_uses(server, 0));
  CHECK(server.complete(body).status == 200);
}

TEST_CASE("A chunked body is refused when there is no room for the rest") {
  TestServer server(narrow_options());
  Client large(server.port);
  send_all_but(large, padded(kLarge), 800'000);
  REQUIRE(eventually_uses(server, 800'000 - BodyBudget::kUnchargedBytes));
  Client chunked(server.port);
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 4; ++i) chunked.send(fmt::format("{:x}\r\n{}\r\n", 100'000, std::string(100'000, ' ')));
  check_refusal(chunked.read());
  CHECK(eventually_uses(server, 800'000 - BodyBudget::kUnchargedBytes));
  large.close();
  CHECK(eventually_uses(server, 0));
}

TEST_CASE("A body is let go of when it has become tokens") {
  TestServer server(narrow_options());
  server.engine.on_submit = [](const sched::GenerateRequest& request) {
    return ScriptedReply{.text = "a", .hangs = request.prompt.size() > 1};
  };
  Client waiting(server.port);
  waiting.send(post_bytes("/v1/completions", padded(kLarge, "pp")));
  REQUIRE(server.engine.wait_until_live(1));
  CHECK(used_bytes(server) == 0);
  CHECK(server.complete(padded(kLarge)).status == 200);
}

TEST_CASE("A response that is not taken is charged to the budget") {
  TestServer server(narrow_options());
  const std::string text = fmt::format(R"({{"prompt":"{}"}})", std::string(200'000, 'x'));
  const size_t answer_bytes = server.post("/tokenize", text).body.size();
  REQUIRE(answer_bytes > 700'000);
  Client slow(server.port, 32'768);
  slow.send(post_bytes("/tokenize", text));
  REQUIRE(eventually_uses(server, answer_bytes - BodyBudget::kUnchargedBytes));
  check_refusal(server.complete(padded(kLarge)));
  CHECK(slow.read().body.size() == answer_bytes);
  CHECK(eventually_uses(server, 0));
  const std::string longer = fmt::format(R"({{"prompt":"{}"}})", std::string(400'000, 'x'));
  CHECK(server.post("/tokenize", longer).status == 200);
}

TEST_CASE("Echo of many long tokens is bounded by the body limit") {
  TestServer server(narrow_options());
  server.engine.info.context_length = 1'000'000;
  const auto status_of = [&](int count) {
    std::string ids = "256";
    for (int i = 1; i < count; ++i) ids += ",256";
    return server.complete(fmt::format(R"({{"prompt":[[{0}],[{0}]],"echo":true,"skip_special_tokens":false}})", ids))
        .status;
  };
  CHECK(status_of(100'000) == 200);
  CHECK(status_of(110'000) == 413);
}

TEST_CASE("Detokenized text is bounded by the body limit") {
  TestServer server(narrow_options());
  std::string ids = "256";
  for (int i = 1; i < 220'000; ++i) ids += ",256";
  const HttpReply reply = server.post("/detokenize", fmt::format(R"({{"tokens":[{}]}})", ids));
  CHECK(reply.status == 413);
  CHECK(ParsedJson(reply.body).string("/error/param") == "tokens");
  ids.resize(4 * 200'000 - 1);
  const HttpReply shorter = server.post("/detokenize", fmt::format(R"({{"tokens":[{}]}})", ids));
  CHECK(ParsedJson(shorter.body).string("/prompt").size() == 5 * 200'000);
}
