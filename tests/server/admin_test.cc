#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <list>
#include <stdexcept>
#include <thread>

#include "server/eventually.h"
#include "server/openai/request.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

TEST_CASE("The small endpoints answer") {
  TestServer server;
  CHECK(ParsedJson(server.get("/v1/models").body).string("/data/0/id") == "fake");
  CHECK(ParsedJson(server.get("/v1/models").body).integer("/data/0/max_model_len") == FakeEngine::kContext);
  CHECK(ParsedJson(server.get("/v1/models/fake").body).string("/object") == "model");
  CHECK(server.get("/v1/models/other").status == 404);
  CHECK(server.get("/health").status == 200);
  CHECK(server.get("/ping").status == 200);
  CHECK(ParsedJson(server.get("/version").body).has("/version"));
  CHECK(ParsedJson(server.get("/load").body).integer("/server_load") == 0);
  const ParsedJson info(server.get("/server_info").body);
  CHECK(info.string("/model/architecture") == "FakeForCausalLM");
  const ParsedJson tokens(server.post("/tokenize", R"({"prompt":"a<bos>","return_token_strs":true})").body);
  CHECK(tokens.integer("/count") == 2);
  CHECK(tokens.integer("/tokens/1") == 256);
  CHECK(tokens.string("/token_strs/1") == "<bos>");
  CHECK(ParsedJson(server.post("/reset_prefix_cache", "").body).at("/flushed").get_bool().value());
  CHECK(server.engine.flushes == 1);
  const ParsedJson chat(server.post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").body);
  CHECK(chat.integer("/count") == 18);
  CHECK(ParsedJson(server.post("/detokenize", R"({"tokens":[72,105,100000]})").body).string("/prompt") == "Hi");
  CHECK(server.post("/tokenize", "{}").status == 400);
  CHECK(server.post("/detokenize", R"({"tokens":"x"})").status == 400);
  CHECK(server.post("/detokenize", "{}").status == 400);
}

TEST_CASE("Texts are tokenised with special tokens or without, by either server's words") {
  const auto outcome = [](std::string_view members) {
    const auto parsed = server::openai::parse_tokenize_request(fmt::format("{{{}}}", members), {});
    return std::pair(std::get<std::string>(parsed->input), parsed->add_special_tokens);
  };
  using Outcome = std::pair<std::string, std::optional<bool>>;
  CHECK(outcome(R"("prompt":"a")") == Outcome("a", std::nullopt));
  CHECK(outcome(R"("content":"a")") == Outcome("a", false));
  CHECK(outcome(R"("content":"a","add_special":true)") == Outcome("a", true));
  CHECK(outcome(R"("content":"a","prompt":"b")") == Outcome("b", std::nullopt));
  CHECK(outcome(R"("prompt":"a","add_special_tokens":false)") == Outcome("a", false));
}

TEST_CASE("A model may have several names, and answers to each by that name") {
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
  CHECK_THAT(ParsedJson(unknown.body).string("/error/message"),
             Catch::EndsWith("has 'fake', also called org/fake, third"));
}

TEST_CASE("HEAD answers as GET without the body, on a connection that goes on") {
  TestServer server;
  Client client(server.port);
  client.send("HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
  const HttpReply head = client.read(true);
  CHECK(head.status == 200);
  CHECK(std::stoul(head.header("Content-Length")) > 10);
  CHECK(client.get("/health").status == 200);
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

TEST_CASE("Routes, methods, media types and models that do not exist") {
  TestServer server;
  const HttpReply unknown = server.get("/nowhere");
  CHECK(unknown.status == 404);
  CHECK(ParsedJson(unknown.body).integer("/error/code") == 404);
  const HttpReply embeddings = server.post("/v1/embeddings", R"({"input":"a"})");
  CHECK(embeddings.status == 400);
  CHECK_THAT(ParsedJson(embeddings.body).string("/error/message"), Catch::Contains("not supported"));
  const HttpReply method = server.get("/v1/completions");
  CHECK(method.status == 405);
  CHECK(method.header("Allow") == "POST, OPTIONS");
  CHECK(server.post("/metrics", "{}").header("Allow") == "GET, HEAD, OPTIONS");
  Client client(server.port);
  client.send("POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
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

TEST_CASE("Metrics count requests and tokens under both names") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.cached_tokens = 1}; };
  REQUIRE(server.complete(R"({"prompt":"abc"})").status == 200);
  REQUIRE(server.complete(R"({"prompt":5})").status == 400);
  const HttpReply reply = server.get("/metrics");
  CHECK_THAT(reply.header("Content-Type"), Catch::StartsWith("text/plain; version=0.0.4"));
  for (const char* line : {
           "vllm:prompt_tokens_total{model_name=\"fake\"} 3\n",
           "millrace:generation_tokens_total{model_name=\"fake\"} 14\n",
           "vllm:prefix_cache_hits_total{model_name=\"fake\"} 1\n",
           "vllm:request_success_total{model_name=\"fake\",finished_reason=\"stop\"} 1\n",
           "vllm:time_to_first_token_seconds_count{model_name=\"fake\"} 1\n",
           "vllm:inter_token_latency_seconds_count{model_name=\"fake\"} 13\n",
           "vllm:kv_cache_usage_perc{model_name=\"fake\"} 0.25\n",
           "vllm:cache_config_info{model_name=\"fake\",block_size=\"16\",num_gpu_blocks=\"80\",num_cpu_blocks=\"0\"} "
           "1\n",
           "vllm:e2e_request_latency_seconds_bucket{model_name=\"fake\",le=\"+Inf\"} 1\n",
           "route=\"/v1/completions\",status=\"400\"} 1\n",
       }) {
    INFO(line);
    CHECK(reply.body.find(line) != std::string::npos);
  }
  CHECK(reply.body.find("\nmillrace:kv_cache_cached_pages{") != std::string::npos);
  CHECK(reply.body.find("vllm:kv_cache_cached_pages") == std::string::npos);
}

TEST_CASE("Metrics tell of the process") {
  TestServer server;
  const auto value = [&server](const std::string& name) {
    const std::string metrics = server.get("/metrics").body;
    const size_t place = metrics.find("\n" + name + " ");
    REQUIRE(place != std::string::npos);
    return std::stod(metrics.substr(place + name.size() + 2));
  };
  const double resident = value("process_resident_memory_bytes");
  CHECK((resident > 1e6 && resident < 1e12));
  const double started = value("process_start_time_seconds");
  const auto now = static_cast<double>(std::time(nullptr));
  CHECK((started > now - 3600 && started < now + 60));
  const double used = value("process_cpu_seconds_total");
  CHECK(used > 0);
  CHECK(value("process_cpu_seconds_total") >= used);
  const double open = value("process_open_fds");
  std::list<Client> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back(server.port);
  CHECK(value("process_open_fds") > open + 4);
}

TEST_CASE("A prompt counts from its first answer on, however the request ends") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) {
    return ScriptedReply{.text = "ab", .hangs = true, .cached_tokens = 2};
  };
  const auto counted = [&server] {
    const std::string metrics = server.get("/metrics").body;
    return metrics.find("vllm:prompt_tokens_total{model_name=\"fake\"} 5\n") != std::string::npos &&
           metrics.find("vllm:prefix_cache_hits_total{model_name=\"fake\"} 4\n") != std::string::npos &&
           metrics.find("vllm:request_prompt_tokens_count{model_name=\"fake\"} 2\n") != std::string::npos;
  };
  {
    Client client(server.port);
    client.send(post_bytes("/v1/completions", R"({"prompt":["abc","de"],"n":2,"stream":true})"));
    CHECK(eventually(counted));
  }
  REQUIRE(server.engine.wait_until_idle());
  CHECK(counted());
}

TEST_CASE("A request that is aborted before its first token has no time to it") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) {
    return ScriptedReply{.text = "", .delay = 1h, .hangs = true};
  };
  Client client(server.port);
  client.send(post_bytes("/v1/completions", R"({"prompt":"p","request_id":"mine"})"));
  REQUIRE(server.engine.wait_until_live(1));
  CHECK(ParsedJson(server.post("/abort_request", R"({"request_id":"mine"})").body).integer("/aborted") == 1);
  CHECK(ParsedJson(client.read().body).string("/choices/0/finish_reason") == "abort");
  const std::string metrics = server.get("/metrics").body;
  for (const char* name : {"request_prompt_tokens", "time_to_first_token_seconds", "request_queue_time_seconds",
                           "request_prefill_time_seconds", "request_decode_time_seconds"}) {
    INFO(name);
    CHECK(metrics.find(fmt::format("vllm:{}_count{{model_name=\"fake\"}} 0\n", name)) != std::string::npos);
  }
}

TEST_CASE("The engine's refusals keep their meaning") {
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

TEST_CASE("A failure is a status before the first token and an event after it") {
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

TEST_CASE("Every answer has a request id: the client's, or one of its own") {
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

namespace {

/// Whether so many flushes come to hang in the engine.
bool wait_until_hanging(const FakeEngine& engine, int count) {
  return eventually([&] { return engine.hanging_flushes == count; });
}

}  // namespace

TEST_CASE("A flush that waits ends with its client, and with the server") {
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

TEST_CASE("A header's id may come several times at once") {
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
  CHECK(server.complete(R"({"prompt":"p"})").status == 429);
  CHECK(ParsedJson(server.get("/load").body).integer("/server_load") == 1);
  CHECK(ParsedJson(server.post("/abort_request", R"({"abort_all":true})").body).integer("/aborted") == 1);
  CHECK(client.read().events().back() == "[DONE]");
}

namespace {

/// How many completions were refused as too many.
int refused_as_busy(const TestServer& server) {
  const std::string metrics = server.get("/metrics").body;
  for (int count = 9; count > 0; --count) {
    const std::string line = fmt::format("route=\"/v1/completions\",status=\"429\"}} {}\n", count);
    if (metrics.find(line) != std::string::npos) return count;
  }
  return 0;
}

}  // namespace

TEST_CASE("Requests that are prepared elsewhere keep to the same limit") {
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
