#include "cluster/coordinator.h"

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/catch.hpp>
#include <future>

#include "async/real_runtime.h"
#include "sim/simulated_runner.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::cluster;
using namespace std::chrono_literals;
using asio::ip::tcp;

namespace {

constexpr uint32_t kPages = 10;

/// A coordinator with a simulated stage of its own, which waits for links without end, and the thread of both.
class Head {
 public:
  Head();
  ~Head();
  [[nodiscard]] async::Runtime& runtime() { return thread_.runtime(); }
  [[nodiscard]] Coordinator& coordinator() { return *coordinator_; }
  [[nodiscard]] const CoordinatorOptions& options() const { return options_; }
  /// What the start would say that it waits for.
  [[nodiscard]] const std::string& awaited() const { return awaited_; }
  void want_pages(uint32_t pages) { coordinator_->set_local(*stages_, {pages, 0}); }
  void run(asio::awaitable<void> scenario);

 private:
  static CoordinatorOptions make_options();

  const CoordinatorOptions options_ = make_options();
  async::IoThread thread_{"head"};
  async::TaskGroup tasks_{thread_.runtime()};
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<sched::LocalStages> stages_;
  std::string awaited_;
};

CoordinatorOptions Head::make_options() {
  CoordinatorOptions options;
  boost::asio::io_context context;
  const tcp::acceptor probe(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  options.address = {"127.0.0.1", probe.local_endpoint().port()};
  options.config = *model::read_config(test::source_dir() / "tests/golden/llama-tied");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Assignment assignment;
    assignment.first_stage = rank;
    assignment.stage_count = 2;
    assignment.layers = {{static_cast<int32_t>(2 * rank), static_cast<int32_t>(2 * rank + 2)}};
    assignment.page_size = 4;
    assignment.max_batch_tokens = 16;
    assignment.max_running = 4;
    assignment.window = 2;
    options.assignments.push_back(assignment);
  }
  options.form_timeout = 24h;
  return options;
}

Head::Head() {
  coordinator_ = std::make_unique<Coordinator>(runtime(), options_);
  REQUIRE_FALSE(coordinator_->open().has_error());
  coordinator_->on_waiting([this](const std::string& what) { awaited_ = what; });
  const Assignment& own = options_.assignments.front();
  const sched::RingShape shape = {2, own.window, {own.max_running, own.page_size, kPages, own.max_batch_tokens, 50}};
  sim::SimulatedStage stage;
  stage.layer_end = 2;
  stage.last = false;
  const sched::LocalStages::RunnerFactory runner = [stage, shape](async::Runtime& home) {
    return std::make_unique<sim::SimulatedRunner>(home, sim::SimulatedModel{4, 50}, stage, shape.bounds,
                                                  [] { return uint64_t{0}; });
  };
  stages_ = std::make_unique<sched::LocalStages>(runtime(), std::vector{&runtime()}, std::vector{runner}, StageId(0),
                                                 shape);
  coordinator_->set_local(*stages_, {kPages, 0});
  asio::post(thread_.context(), [this] { tasks_.spawn("coordinator", coordinator_->serve()); });
}

Head::~Head() {
  asio::post(thread_.context(), [this] { coordinator_->interrupt(); });
  thread_.join();
}

asio::awaitable<void> run_scenario(asio::awaitable<void> scenario, std::promise<void>& done) {
  try {
    co_await std::move(scenario);
    done.set_value();
  } catch (...) {
    done.set_exception(std::current_exception());
  }
}

void Head::run(asio::awaitable<void> scenario) {
  std::promise<void> done;
  asio::post(thread_.context(), [&] { tasks_.spawn("scenario", run_scenario(std::move(scenario), done)); });
  done.get_future().get();
}

asio::awaitable<std::shared_ptr<ControlConnection>> connect_to(Head& head) {
  tcp::socket socket(head.runtime().executor());
  const tcp::endpoint there(asio::ip::address_v4::loopback(), head.options().address.port);
  co_await socket.async_connect(there, asio::use_awaitable);
  auto connection = std::make_shared<ControlConnection>(head.runtime(), std::move(socket), ControlTiming{});
  connection->start();
  co_return connection;
}

/// A node of rank 1 that says hello and that it has loaded.
asio::awaitable<std::shared_ptr<ControlConnection>> join_as_node(Head& head, std::string compute = "bf16 cpu avx2",
                                                                 std::string stage = "weights") {
  auto node = co_await connect_to(head);
  node->send(Hello{kProtocolVersion, 1, 2, model::fingerprint(head.options().config), 1});
  const Message assignment = co_await node->receive();
  REQUIRE(std::get<Assignment>(assignment) == head.options().assignments[1]);
  node->send(Loaded{kPages, compute, {}, {}, {stage}});
  co_return node;
}

/// Why form() failed; the generation is dissolved as Ring does it.
asio::awaitable<std::string> failure_to_form(Head& head, Generation generation) {
  std::string failure;
  try {
    (void)co_await head.coordinator().form(generation);
  } catch (const ErrorException& error) {
    failure = error.error().message;
  }
  co_await head.coordinator().dissolve(generation, failure);
  co_return failure;
}

asio::awaitable<void> leave_when_asked_to_join(std::shared_ptr<ControlConnection> node) {
  const Message form = co_await node->receive();
  REQUIRE(std::get<Form>(form).pages.device == kPages);
  REQUIRE(std::get<Form>(form).fingerprint.size() == 32);
  node->close("out of power");
  co_await node->join();
}

asio::awaitable<void> stop_when_asked_to_join(std::shared_ptr<ControlConnection> node) {
  const Message form = co_await node->receive();
  node->send(Stopped{std::get<Form>(form).generation, "cannot link"});
}

asio::awaitable<void> lose_nodes_while_links_form(Head& head) {
  async::TaskGroup nodes(head.runtime());
  auto node = co_await join_as_node(head);
  const auto ring = co_await head.coordinator().all_loaded("bf16 cpu avx512", {"own weights"});
  REQUIRE(ring.page_capacity == kPages);
  REQUIRE(ring.fingerprint == model::fingerprint(std::vector<std::string>{"own weights", "weights"}).to_string());
  const auto compute = [&head](size_t rank) { return head.coordinator().nodes().at(rank).compute; };
  REQUIRE(compute(0) == "bf16 cpu avx512");
  REQUIRE(compute(1) == "bf16 cpu avx2");
  REQUIRE(head.coordinator().nodes()[1].first_stage == 1);
  nodes.spawn("leave", leave_when_asked_to_join(node));
  const std::string gone = co_await failure_to_form(head, Generation(1));
  REQUIRE(gone == "node 1 of 2 (stages 1 to 1): out of power");
  REQUIRE(compute(1).empty());
  co_await nodes.join();

  node = co_await join_as_node(head);
  nodes.spawn("stop", stop_when_asked_to_join(node));
  const std::string stopped = co_await failure_to_form(head, Generation(2));
  REQUIRE(stopped == "node 1 of 2 (stages 1 to 1): cannot link");
  co_await nodes.join();
  node->close("the test is over");
  co_await node->join();
}

/// What a node hears that comes with this instead of the weights it had when the ring was made.
asio::awaitable<std::string> refusal_of(Head& head, std::string stage) {
  const auto node = co_await join_as_node(head, "bf16 cpu avx2", std::move(stage));
  std::string reason;
  try {
    (void)co_await node->receive();
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  node->close("the test is over");
  co_await node->join();
  co_return reason;
}

asio::awaitable<void> come_back_with_other_weights(Head& head) {
  const auto node = co_await join_as_node(head);
  (void)co_await head.coordinator().all_loaded("bf16 cpu avx2", {"own weights"});
  node->close("it is started anew");
  co_await node->join();
  while (!head.coordinator().nodes().at(1).compute.empty()) co_await async::sleep_for(head.runtime(), 1ms);
  const std::string reason = co_await refusal_of(head, "fine-tuned weights");
  REQUIRE_THAT(reason, Catch::Contains("start the head again"));
}

asio::awaitable<std::string> end_of(std::shared_ptr<ControlConnection> connection) {
  std::string reason;
  try {
    (void)co_await connection->receive();
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  connection->close("the test is over");
  co_await connection->join();
  co_return reason;
}

/// Strangers send pings, as a connection does, and never say who they are.
asio::awaitable<void> crowd_the_port(Head& head) {
  std::vector<std::shared_ptr<ControlConnection>> strangers;
  for (size_t i = 0; i < NodeRoster::kMaxStrangers; ++i) {
    auto stranger = co_await connect_to(head);
    strangers.push_back(std::move(stranger));
  }
  const auto one_too_many = co_await connect_to(head);
  const std::string turned_away = co_await end_of(one_too_many);
  REQUIRE_THAT(turned_away, Catch::StartsWith("connection lost: "));
  for (const auto& stranger : strangers) {
    const std::string reason = co_await end_of(stranger);
    REQUIRE(reason == "no hello came within 2 s");
  }
  const auto node = co_await join_as_node(head);
  node->close("the test is over");
  co_await node->join();
}

asio::awaitable<void> want_more_pages(Head& head) {
  const auto node = co_await join_as_node(head);
  (void)co_await head.coordinator().all_loaded("bf16 cpu avx2", {});
  head.want_pages(2 * kPages);
  const std::string reason = co_await end_of(node);
  REQUIRE(reason == "its memory holds 10 pages of KV cache, the ring was made for 20");
}

asio::awaitable<void> interrupt_later(Head& head) {
  while (head.awaited().empty()) co_await async::sleep_for(head.runtime(), 1ms);
  REQUIRE(head.awaited() == "forming: waiting for node 1 of 2 (stages 1 to 1)");
  head.coordinator().interrupt();
}

asio::awaitable<void> interrupt_a_wait(Head& head) {
  async::TaskGroup tasks(head.runtime());
  tasks.spawn("interrupt", interrupt_later(head));
  const std::string failure = co_await failure_to_form(head, Generation(1));
  REQUIRE(failure == "the head is stopping");
  co_await tasks.join();
}

}  // namespace

TEST_CASE("a generation is given up as soon as a node of it is gone, whatever the links wait for") {
  Head head;
  head.run(lose_nodes_while_links_form(head));
}

TEST_CASE("a node that comes back with other weights than the page stores were opened for is refused") {
  Head head;
  head.run(come_back_with_other_weights(head));
}

TEST_CASE("connections that do not say hello are bounded in number and time, and keep no node away") {
  Head head;
  head.run(crowd_the_port(head));
}

TEST_CASE("a node that came before the size of the pools was known, and is too small, is told to go") {
  Head head;
  head.run(want_more_pages(head));
}

TEST_CASE("a wait for nodes names the missing and can be interrupted") {
  Head head;
  head.run(interrupt_a_wait(head));
}
