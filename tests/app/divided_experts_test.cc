#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <thread>

#include "app/engine_client.h"
#include "app/local_rings.h"
#include "cluster/remote/ring_server.h"
#include "cpu/cpu_backend.h"
#include "sched/head/engine_status.h"
#include "sched/head/ring_set.h"
#include "sched/head/ring_stats.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

/// Some rings that share experts: how many, how many of them are the front's, and their shape.
struct Division {
  int32_t rings = 2;
  int32_t local = 1;
  int32_t stages = 1;
  int32_t ranks = 1;
};

app::EngineOptions divided_options(const std::string& family, const Division& division) {
  app::EngineOptions options = options_for(family, division.stages);
  options.node.device = app::DeviceChoice::kCpu;
  options.dp_size = division.rings;
  options.tp_size = division.ranks;
  options.enable_ep = true;
  return options;
}

uint16_t free_port() {
  asio::io_context context;
  const asio::ip::tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
  return acceptor.local_endpoint().port();
}

std::unique_ptr<app::LocalRings> start_process(const app::EngineOptions& options, const app::RingPlacement& placement) {
  app::ClusterOptions cluster;
  cluster.rings = placement;
  auto rings = app::LocalRings::create(options, cluster, 512);
  if (rings.has_error()) FAIL(rings.error().message);
  const auto started = (*rings)->start();
  if (started.has_error()) FAIL(started.error().message);
  return std::move(*rings);
}

class NoHost final : public cluster::remote::RingHost {
 public:
  asio::awaitable<Result<std::shared_ptr<const grammar::Grammar>>> compile(
      std::shared_ptr<const std::string> /*source*/) override {
    co_return Error{ErrorCode::kInternal, "a test compiles nothing"};
  }
  std::shared_ptr<const grammar::Vocabulary> tag_vocabulary() override { return nullptr; }
  cluster::remote::RingMetrics metrics() override { return {}; }
};

/// A ring as in a process of its own, which leaves the front at its end.
class RemoteRing {
 public:
  RemoteRing(const app::EngineOptions& options, int32_t number, const comm::TcpEndpoint& front)
      : rings_(start_process(options, {.local = 0, .number = number, .front = front})) {
    cluster::remote::RingServerOptions server{.front = front,
                                              .hello = {static_cast<uint32_t>(number), rings_->facts()},
                                              .timing = {},
                                              .steps = rings_->ring_steps()};
    server.timing.silence_limit = 60s;
    server_ = std::make_unique<cluster::remote::RingServer>(thread_.runtime(), server, rings_->engine(), host_);
    asio::post(thread_.context(), [this] { tasks_.spawn("ring server", server_->run()); });
  }
  ~RemoteRing() {
    rings_->expect_stop();
    asio::post(thread_.context(), [this] { server_->stop(); });
    thread_.join();
  }

 private:
  std::unique_ptr<app::LocalRings> rings_;
  NoHost host_;
  async::IoThread thread_{"front link"};
  async::TaskGroup tasks_{thread_.runtime()};
  std::unique_ptr<cluster::remote::RingServer> server_;
};

/// A front and the rings of other processes.
struct DividedRings {
  DividedRings(const std::string& family, const Division& its_division)
      : division(its_division), options(divided_options(family, division)) {
    options.node.ring_timeout = 60s;
    front = start_process(options, {.local = division.local, .number = {}, .front = address});
    for (int32_t ring = division.local; ring < division.rings; ++ring) start_ring(ring);
    wait_for_all();
  }
  void start_ring(int32_t ring) { others.push_back(std::make_unique<RemoteRing>(options, ring, address)); }
  [[nodiscard]] sched::RingSet& set() { return *front->engine().rings(); }
  void wait_for_all() {
    const auto all_ready = [this] {
      for (size_t ring = 0; ring < set().size(); ++ring) {
        if (!set().report(ring).fault.empty()) return false;
      }
      return true;
    };
    while (!all_ready()) std::this_thread::sleep_for(1ms);
  }

  const comm::TcpEndpoint address{.host = "127.0.0.1", .port = free_port()};
  const Division division;
  app::EngineOptions options;
  std::unique_ptr<app::LocalRings> front;
  std::vector<std::unique_ptr<RemoteRing>> others;
};

/// Spreads the requests over all rings.
std::vector<sched::GenerateRequest> pinned_requests(size_t count, int32_t rings) {
  auto requests = mixed_requests(count);
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].ring = static_cast<uint32_t>(i) % static_cast<uint32_t>(rings);
  return requests;
}

std::vector<Reply> replies_of_one(const std::string& family, const std::vector<sched::GenerateRequest>& requests) {
  auto options = options_for(family, 1);
  options.node.device = app::DeviceChoice::kCpu;
  const auto rings = start_process(options, {});
  while (!rings->engine().status().ready) std::this_thread::sleep_for(1ms);
  auto unpinned = requests;
  for (auto& request : unpinned) request.ring.reset();
  return ask(rings->engine(), unpinned);
}

}  // namespace

TEST_CASE("replies do not depend on processes that share experts") {
  const std::string family = GENERATE("qwen3moe", "mixtral");
  for (const Division& division : {Division{.rings = 2, .local = 1, .stages = 1, .ranks = 1},
                                   Division{.rings = 2, .local = 1, .stages = 2, .ranks = 2},
                                   Division{.rings = 4, .local = 2, .stages = 1, .ranks = 1}}) {
    INFO(family << " dp " << division.rings << " pp " << division.stages << " tp " << division.ranks);
    const auto requests = pinned_requests(8, division.rings);
    const auto wanted = replies_of_one(family, requests);
    DividedRings rings(family, division);
    const auto replies = ask(rings.front->engine(), requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      INFO("request " << i);
      require_same(replies[i], wanted[i]);
    }
    const auto steps = rings.set().ring(0).ring_stats()->snapshot(0).steps;
    REQUIRE(steps.with_rows > 0);
  }
}

TEST_CASE("processes that share experts end and form together") {
  const auto requests = pinned_requests(4, 2);
  const auto wanted = replies_of_one("qwen3moe", requests);
  DividedRings rings("qwen3moe", {});
  rings.others.clear();
  while (rings.set().report(0).fault.empty() || rings.set().report(1).fault.empty()) std::this_thread::sleep_for(1ms);
  REQUIRE(ask(rings.front->engine(), {requests[0]}).front().error->code == ErrorCode::kUnavailable);
  rings.start_ring(1);
  rings.wait_for_all();
  const auto replies = ask(rings.front->engine(), requests);
  for (size_t i = 0; i < requests.size(); ++i) require_same(replies[i], wanted[i]);
  REQUIRE(rings.set().ring(0).ring_stats()->snapshot(0).epochs == 2);
}

TEST_CASE("a process has the experts of its position alone") {
  const int64_t before = static_cast<int64_t>(cpu::packed_bytes());
  int64_t whole = 0;
  {
    auto options = options_for("qwen3moe", 1);
    options.node.device = app::DeviceChoice::kCpu;
    const auto one = start_process(options, {});
    whole = static_cast<int64_t>(cpu::packed_bytes()) - before;
  }
  const app::EngineOptions options = divided_options("qwen3moe", {.rings = 4});
  const auto ring = start_process(options, {.local = 0, .number = 3, .front = {"127.0.0.1", free_port()}});
  const int64_t part = static_cast<int64_t>(cpu::packed_bytes()) - before;
  REQUIRE(part > 0);
  REQUIRE(part < whole);
}

TEST_CASE("processes that share experts agree on having a page store") {
  for (const bool has_store : {false, true}) {
    app::EngineOptions options = divided_options("qwen3moe", {});
    options.hierarchical_cache = has_store;
    if (has_store) options.node.storage.backend = app::StoreBackend::kFile;
    const auto ring = start_process(options, {.local = 0, .number = 1, .front = {"127.0.0.1", free_port()}});
    REQUIRE_THAT(ring->facts().experts, Mentions(has_store ? "with a page store" : "without page store"));
  }
}
