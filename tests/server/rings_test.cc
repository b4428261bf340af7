#include <catch2/catch.hpp>
#include <fstream>
#include <future>
#include <sstream>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "sched/router/ring_router.h"
#include "server/observe/ring_labels.h"
#include "server/test_server.h"
#include "support/fake_ring_view.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// A server over two fake rings.
class TwoRingServer {
 public:
  explicit TwoRingServer(server::ServerOptions options = {}) {
    options.http.host = "127.0.0.1";
    options.http.port = 0;
    front_ = std::make_unique<server::Server>(options, test_service(router_));
    port_ = front_->start().value();
  }
  ~TwoRingServer() { front_->stop(std::chrono::milliseconds(0)); }
  [[nodiscard]] HttpReply get(std::string_view path) const { return Client(port_).get(path); }
  [[nodiscard]] HttpReply post(std::string_view path, std::string_view json) const {
    return Client(port_).post(path, json);
  }

  FakeEngine a;
  FakeEngine b;

 private:
  async::IoThread thread_{"router"};
  sched::RingRouter router_{thread_.runtime(),
                            {&a, &b},
                            {.method = sched::LoadBalanceMethod::kRoundRobin, .max_running = 8, .page_size = 16}};
  std::unique_ptr<server::Server> front_;
  uint16_t port_ = 0;
};

}  // namespace

TEST_CASE("Requests go to the ring that they name") {
  TwoRingServer server;
  for (int i = 0; i < 3; ++i) {
    CHECK(server.post("/v1/completions", R"({"prompt":"p","routed_dp_rank":1})").status == 200);
  }
  CHECK(server.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"c"}],"data_parallel_rank":0})")
            .status == 200);
  CHECK(server.b.seen().size() == 3);
  CHECK(server.a.seen().size() == 1);
  for (const char* member : {"routed_dp_rank", "data_parallel_rank"}) {
    const HttpReply reply = server.post("/v1/completions", fmt::format(R"({{"prompt":"p","{}":2}})", member));
    CHECK(reply.status == 400);
    CHECK(ParsedJson(reply.body).string("/error/param") == member);
  }
}

TEST_CASE("A server of one ring takes rank 0 only") {
  TestServer server;
  CHECK(server.complete(R"({"prompt":"p","routed_dp_rank":0})").status == 200);
  const HttpReply reply = server.complete(R"({"prompt":"p","routed_dp_rank":1})");
  CHECK(reply.status == 400);
  CHECK(ParsedJson(reply.body).string("/error/param") == "routed_dp_rank");
  CHECK(server.post("/drain_ring", R"({"ring":0})").status == 409);
  CHECK(server.post("/pause_generation", R"({"ring":1})").status == 400);
  CHECK(server.post("/pause_generation", R"({"ring":0})").status == 200);
}

TEST_CASE("A server without one of its rings is degraded") {
  TwoRingServer server;
  CHECK(ParsedJson(server.get("/health").body).string("/status") == "ok");
  server.b.ready = false;
  const HttpReply degraded = server.get("/health");
  CHECK(degraded.status == 200);
  CHECK(ParsedJson(degraded.body).string("/status") == "degraded");
  CHECK(ParsedJson(degraded.body).string("/reason") == "ring 1: stage 1 is silent");
  CHECK(server.post("/v1/completions", R"({"prompt":"p"})").status == 200);
  CHECK(server.post("/v1/completions", R"({"prompt":"p","routed_dp_rank":1})").status == 503);
  server.a.ready = false;
  CHECK(server.get("/health").status == 503);
}

TEST_CASE("Administrators address one ring or all") {
  TwoRingServer server;
  CHECK(server.post("/flush_cache", R"({"ring":1})").status == 200);
  CHECK((server.a.flushes == 0 && server.b.flushes == 1));
  CHECK(server.post("/flush_cache", "").status == 200);
  CHECK((server.a.flushes == 1 && server.b.flushes == 2));
  CHECK(server.post("/pause_generation", R"({"ring":1,"mode":"in_place"})").status == 200);
  CHECK((!server.a.paused && server.b.paused));
  CHECK(server.post("/continue_generation", R"({"ring":1})").status == 200);
  CHECK_FALSE(server.b.paused.has_value());
  CHECK(server.post("/pause_generation", "").status == 200);
  CHECK((server.a.paused && server.b.paused));
  CHECK(server.post("/continue_generation", "").status == 200);
  CHECK(server.post("/abort_request", R"({"abort_all":true,"ring":1})").status == 200);
  for (const char* path : {"/flush_cache", "/pause_generation", "/continue_generation", "/drain_ring", "/undrain_ring",
                           "/restart_ring", "/start_profile"}) {
    INFO(path);
    const HttpReply reply = server.post(path, R"({"ring":2})");
    CHECK(reply.status == 400);
    CHECK(ParsedJson(reply.body).string("/error/param") == "ring");
  }
  CHECK(server.post("/abort_request", R"({"abort_all":true,"ring":2})").status == 400);
  CHECK(server.get("/live?ring=2").status == 400);
}

TEST_CASE("A ring is drained before it is restarted") {
  TwoRingServer server;
  CHECK(server.post("/restart_ring", R"({"ring":0})").status == 409);
  CHECK(server.post("/drain_ring", "{}").status == 400);
  const HttpReply drained = server.post("/drain_ring", R"({"ring":0})");
  CHECK(drained.status == 200);
  CHECK(ParsedJson(drained.body).at("/draining").get_bool().value());
  CHECK(ParsedJson(drained.body).integer("/running") == 0);
  CHECK(server.post("/drain_ring", R"({"ring":1})").status == 409);
  for (int i = 0; i < 3; ++i) CHECK(server.post("/v1/completions", R"({"prompt":"p"})").status == 200);
  CHECK(server.a.seen().empty());
  const HttpReply undrained = server.post("/undrain_ring", R"({"ring":0})");
  CHECK_FALSE(ParsedJson(undrained.body).at("/draining").get_bool().value());
  CHECK(server.post("/restart_ring", R"({"ring":0,"force":true})").status == 503);  // a fake cannot
}

TEST_CASE("Each ring shows its own statistics") {
  TwoRingServer server;
  const auto a = std::make_shared<FakeRingView>(1);
  const auto b = std::make_shared<FakeRingView>(3);
  const HttpReply unseen = server.get("/live?ring=1");
  CHECK(unseen.status == 503);
  CHECK_THAT(ParsedJson(unseen.body).string("/error/message"), Mentions("ring 1"));
  server.a.stats = a;
  server.b.stats = b;
  a->record_plans(1);
  b->record_plans(2);
  b->set_as_of_ns(7'000);
  CHECK(ParsedJson(server.get("/live").body).integer("/stage_count") == 1);
  const ParsedJson live(server.get("/live?ring=1&since=1").body);
  CHECK(live.integer("/stage_count") == 3);
  CHECK(live.at("/now_us").get_double().value() == 7);
  CHECK(live.integer("/plans/0/number") == 2);
  CHECK(live.integer("/rings/1/ring") == 1);
  CHECK(server.get("/cost_model?ring=1").status == 503);
  b->set_costs({.stages = std::vector<sched::CostCoefficients>(3), .context_length = 99});
  const ParsedJson costs(server.get("/cost_model?ring=1").body);
  CHECK(costs.integer("/context_length") == 99);
  const std::string metrics = server.get("/metrics").body;
  CHECK(metrics.find("millrace:micro_batches_total{ring=\"0\"} 1\n") != std::string::npos);
  CHECK(metrics.find("millrace:micro_batches_total{ring=\"1\"} 2\n") != std::string::npos);
}

TEST_CASE("A profile waits for what a ring has recorded") {
  const TemporaryFolder folder;
  server::ServerOptions options;
  options.profile_dir = folder.path().string();
  TwoRingServer server(options);
  const auto near = std::make_shared<FakeRingView>(1);
  const auto far = std::make_shared<FakeRingView>(2);
  far->record_plans(3);
  far->set_as_of_ns(1'000);
  server.a.stats = near;
  CHECK(server.post("/start_profile", "").status == 503);  // ring 1 has none
  server.b.stats = far;
  CHECK(server.post("/start_profile", R"({"path":"run.json"})").status == 200);
  near->record_plans(1);
  auto stopped = std::async(std::launch::async, [&server] { return server.post("/stop_profile", "").body; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // news that arrive after the request
  far->record_plans(2);
  far->set_as_of_ns(2'000);
  const ParsedJson written(stopped.get());
  CHECK(written.integer("/plans") == 3);
  CHECK(written.integer("/lost_plans") == 0);
  for (const auto& [ring, last] : {std::pair(0, 101), {1, 105}}) {
    std::ifstream file(folder.path() / fmt::format("run-ring-{}.json", ring));
    std::stringstream text;
    text << file.rdbuf();
    CHECK(text.str().find(fmt::format("\"plan\":{}", last)) != std::string::npos);
  }
}

TEST_CASE("Metrics and server info name rings") {
  TwoRingServer server;
  for (int i = 0; i < 4; ++i) CHECK(server.post("/v1/completions", R"({"prompt":"p"})").status == 200);
  server.b.ready = false;
  const std::string metrics = server.get("/metrics").body;
  for (const char* line : {"millrace:ring_serves{ring=\"0\"} 1\n", "millrace:ring_serves{ring=\"1\"} 0\n",
                           "millrace:routed_requests_total{ring=\"0\",reason=\"round_robin\"} 2\n",
                           "millrace:routed_requests_total{ring=\"1\",reason=\"round_robin\"} 2\n",
                           "millrace:ring_moved_requests_total{ring=\"0\"} 0\n"}) {
    INFO(line);
    CHECK(metrics.find(line) != std::string::npos);
  }
  CHECK(metrics.find("millrace:engine_ready") != std::string::npos);
  const ParsedJson info(server.get("/server_info").body);
  CHECK(info.string("/rings/1/reason") == "stage 1 is silent");
  TestServer single;
  CHECK(single.get("/metrics").body.find("ring_serves") == std::string::npos);
}

TEST_CASE("Metrics of several rings are one family each") {
  std::string out;
  const std::string first =
      "# HELP m:a A.\n# TYPE m:a gauge\nm:a 1\nm:a{x=\"y z\"} 2\n# HELP m:b B.\n# TYPE m:b counter\nm:b 3\n";
  const std::string second =
      "# HELP m:b B.\n# TYPE m:b counter\nm:b 4\n# HELP m:c C.\n# TYPE m:c gauge\nm:c{v=\"w\"} 5\n";
  server::append_ring_labelled(out, std::vector<std::string>{first, second});
  CHECK(out ==
        "# HELP m:a A.\n# TYPE m:a gauge\nm:a{ring=\"0\"} 1\nm:a{ring=\"0\",x=\"y z\"} 2\n"
        "# HELP m:b B.\n# TYPE m:b counter\nm:b{ring=\"0\"} 3\nm:b{ring=\"1\"} 4\n"
        "# HELP m:c C.\n# TYPE m:c gauge\nm:c{ring=\"1\",v=\"w\"} 5\n");
}
