#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <list>

#include "server/eventually.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

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
           "millrace:kv_cache_window_free_pages{model_name=\"fake\",window=\"128\"} 7\n",
           "millrace:kv_cache_window_total_pages{model_name=\"fake\",window=\"128\"} 9\n",
           "millrace:kv_cache_window_cached_pages{model_name=\"fake\",window=\"128\"} 2\n",
           "millrace:kv_cache_window_host_pages{model_name=\"fake\",window=\"128\"} 0\n",
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

TEST_CASE("A prompt counts from its first token however it ends") {
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

TEST_CASE("A request aborted before its first token has no TTFT") {
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
