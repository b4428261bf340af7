#include "cluster/fake_head.h"

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/catch.hpp>
#include <future>

#include "cluster/support.h"
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
  return options;
}

FakeHead::FakeHead(bool divided) {
  coordinator_ = std::make_unique<Coordinator>(runtime(), options_);
  REQUIRE_FALSE(coordinator_->open().has_error());
  coordinator_->on_waiting([this](const std::string& what) { awaited_ = what; });
  stages_ = simulated_stage(runtime(), options_.assignments.front(), options_.config, {kPages, 0});
  coordinator_->set_local(*stages_, {kPages, 0});
  asio::post(thread_.context(), [this, divided] {
    tasks_.spawn("coordinator", coordinator_->serve());
    if (divided) divide();
  });
}

FakeHead::~FakeHead() {
  asio::post(thread_.context(), [this] { coordinator_->interrupt(); });
  thread_.join();
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

asio::awaitable<std::shared_ptr<ControlConnection>> join_as_node(FakeHead& head, std::string compute,
                                                                 std::string stage) {
  auto node = co_await connect_to(head);
  node->send(hello_to(head));
  const Message assignment = co_await node->receive();
  REQUIRE(std::get<Assignment>(assignment) == head.options().assignments[1]);
  node->send(Loaded{kPages, compute, {}, {}, {stage}});
  co_return node;
}

}  // namespace millrace::test
