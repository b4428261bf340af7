#include "cluster/fake_head.h"

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/catch.hpp>
#include <future>

#include "cluster/support.h"
#include "model/families/read_config.h"
#include "support/paths.h"

namespace millrace::test {

using namespace cluster;
using namespace std::chrono_literals;
using asio::ip::tcp;

namespace {

asio::awaitable<void> run_scenario(asio::awaitable<void> scenario, std::promise<void>& done) {
  try {
    co_await std::move(scenario);
    done.set_value();
  } catch (...) {
    done.set_exception(std::current_exception());
  }
}

}  // namespace

CoordinatorOptions FakeHead::make_options() {
  CoordinatorOptions options;
  boost::asio::io_context context;
  const tcp::acceptor probe(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  options.address = {"127.0.0.1", probe.local_endpoint().port()};
  options.config = *model::read_config(source_dir() / "tests/golden/llama-tied");
  for (uint32_t rank = 0; rank < 2; ++rank) options.assignments.push_back(one_stage(rank, 2, 2));
  options.build_timeout = 24h;
  options.pool_sizes = [](const LoadedRing& ring) -> Result<cache::PoolSizes> {
    if (ring.page_capacity == 0) return Error{ErrorCode::kExhausted, "no room for a page"};
    return cache::PoolSizes{.device = static_cast<uint32_t>(std::min<uint64_t>(kPages, ring.page_capacity))};
  };
  return options;
}

FakeHead::FakeHead(bool divided) {
  coordinator_ = std::make_unique<Coordinator>(runtime(), options_);
  REQUIRE_FALSE(coordinator_->open().has_error());
  coordinator_->on_waiting([this](const std::string& what) { awaited_ = what; });
  stages_ = simulated_stage(runtime(), options_.assignments.front(), options_.config, {kPages, 0});
  coordinator_->set_local(*this, *stages_, {kPages, 0});
  asio::post(thread_.context(), [this, divided] {
    tasks_.spawn("coordinator", coordinator_->serve());
    if (divided) divide();
  });
}

FakeHead::~FakeHead() {
  asio::post(thread_.context(), [this] { coordinator_->interrupt(); });
  thread_.join();
}

Result<Loaded> FakeHead::measure() {
  stages_.reset();
  return Loaded{.page_capacity = 2 * kPages, .contents = {.ranks = {"own weights"}, .experts = {}}};
}

Result<sched::LocalStages*> FakeHead::stages(const Assignment& assignment, cache::PoolSizes pages, const std::string&) {
  if (!failure_.empty()) return Error{ErrorCode::kExhausted, failure_};
  made_.push_back(pages);
  stages_ = simulated_stage(runtime(), assignment, options_.config, pages);
  return stages_.get();
}

void FakeHead::run(asio::awaitable<void> scenario) {
  std::promise<void> done;
  asio::post(thread_.context(), [&] { tasks_.spawn("scenario", run_scenario(std::move(scenario), done)); });
  done.get_future().get();
}

asio::awaitable<std::shared_ptr<ControlConnection>> connect_to(FakeHead& head) {
  tcp::socket socket(head.runtime().executor());
  const tcp::endpoint there(asio::ip::address_v4::loopback(), head.options().address.port);
  co_await socket.async_connect(there, asio::use_awaitable);
  auto connection = std::make_shared<ControlConnection>(head.runtime(), std::move(socket), ControlTiming{});
  connection->start();
  co_return connection;
}

Hello hello_to(const FakeHead& head) {
  return {.node_rank = 1, .node_count = 2, .config = model::fingerprint(head.options().config), .ring_port = 1};
}

Loaded loaded_node(uint32_t pages, std::string stage) {
  return {.page_capacity = pages,
          .host_page_capacity = pages,
          .sequence_capacity = pages,
          .compute = "bf16 cpu avx2",
          .contents = {.ranks = {std::move(stage)}, .experts = {}}};
}

asio::awaitable<std::shared_ptr<ControlConnection>> join_as_node(FakeHead& head, Loaded loaded) {
  auto node = co_await connect_to(head);
  node->send(hello_to(head));
  const Message assignment = co_await node->receive();
  REQUIRE(std::get<Assignment>(assignment) == head.options().assignments[1]);
  node->send(std::move(loaded));
  co_return node;
}

}  // namespace millrace::test
