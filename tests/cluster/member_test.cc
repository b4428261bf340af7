#include "cluster/member.h"

#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <future>

#include "cluster/node_link.h"
#include "cluster/support.h"
#include "comm/tcp_handshake.h"
#include "model/families/read_config.h"
#include "sched/plan/plan.h"
#include "support/captured_log.h"
#include "support/hanging_lookup.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::cluster;
using namespace std::chrono_literals;
using asio::ip::tcp;
using test::end;
using test::end_of;
using test::kPages;

namespace {

/// Stage 1 of 3.
Assignment middle_stage(uint64_t ring_id) {
  Assignment assignment = test::one_stage(1, 3, 1);
  assignment.ring_id = ring_id;
  return assignment;
}

/// The nodes of such a ring, of which the last is at a port of this host.
std::vector<JoinedNode> three_nodes(uint16_t last_port) {
  std::vector<JoinedNode> nodes(3);
  for (uint32_t rank = 0; rank < 3; ++rank) nodes[rank].part.first_stage = rank;
  nodes[2].host = "127.0.0.1";
  nodes[2].port = last_port;
  return nodes;
}

/// A simulated stage that stays the same, whatever is asked for; or what goes wrong instead.
class PlayedHost final : public StageHost {
 public:
  PlayedHost(async::Runtime& runtime, const model::ModelConfig& config) : runtime_(runtime), config_(config) {}

  Result<Loaded> load(const Assignment&) override {
    if (!load_failure.empty()) throw std::runtime_error(load_failure);
    return measure();
  }
  Result<Loaded> measure() override { return Loaded{.page_capacity = capacity--, .compute = "bf16 cpu avx2"}; }
  Result<sched::LocalStages*> stages(const Assignment& assignment, cache::PoolSizes pages,
                                     const std::string&) override {
    if (!stages_failure.empty()) return Error{ErrorCode::kExhausted, stages_failure};
    if (!stages_) stages_ = test::simulated_stage(runtime_, assignment, config_, pages);
    return stages_.get();
  }

  [[nodiscard]] sched::LocalStages& made() { return *stages_; }

  std::string load_failure;
  std::string stages_failure;
  uint64_t capacity = kPages;  // that is measured next, and less each time

 private:
  async::Runtime& runtime_;
  const model::ModelConfig& config_;
  std::unique_ptr<sched::LocalStages> stages_;
};

/// A Member whose head is the test, and the thread of both.
class Node {
 public:
  /// `name`: by which the Member knows the head, if not by its address.
  explicit Node(const asio::ip::address& address = asio::ip::address_v4::loopback(), const std::string& name = {})
      : config_(*model::read_config(test::source_dir() / "tests/golden/llama-tied")),
        acceptor_(thread_.context(), tcp::endpoint(address, 0)),
        host_(thread_.runtime(), config_) {
    MemberOptions options;
    options.coordinator = {name.empty() ? address.to_string() : name, acceptor_.local_endpoint().port()};
    options.node_count = 3;
    options.config = config_;
    member_ = std::make_unique<Member>(thread_.runtime(), options, host_);
  }
  ~Node() { thread_.join(); }

  /// Runs the Member until `scenario`, which plays its head, is over.
  void run(asio::awaitable<void> scenario) {
    std::promise<void> done;
    asio::post(thread_.context(), [&] {
      tasks_.spawn("member", member_->run());
      tasks_.spawn("scenario", play(std::move(scenario), done));
    });
    done.get_future().get();
  }

  [[nodiscard]] async::Runtime& runtime() { return thread_.runtime(); }
  [[nodiscard]] const model::ModelConfig& config() const { return config_; }
  [[nodiscard]] tcp::acceptor& acceptor() { return acceptor_; }
  [[nodiscard]] PlayedHost& host() { return host_; }
  [[nodiscard]] Member& member() { return *member_; }
  [[nodiscard]] comm::TcpLinkGroup& links() { return links_; }

 private:
  asio::awaitable<void> play(asio::awaitable<void> scenario, std::promise<void>& done) {
    std::exception_ptr failure;
    try {
      co_await std::move(scenario);
    } catch (...) {
      failure = std::current_exception();
    }
    member_->stop();
    acceptor_.close();
    co_await links_.shutdown();
    failure ? done.set_exception(failure) : done.set_value();
  }

  const model::ModelConfig config_;
  async::IoThread thread_{"node"};
  async::TaskGroup tasks_{thread_.runtime()};
  comm::TcpLinkGroup links_{thread_.runtime()};
  tcp::acceptor acceptor_;
  PlayedHost host_;
  std::unique_ptr<Member> member_;
};

/// The Member's next connection and what it says first.
asio::awaitable<std::pair<std::shared_ptr<ControlConnection>, Hello>> hear(async::Runtime& runtime,
                                                                           tcp::acceptor& acceptor) {
  tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
  auto connection = std::make_shared<ControlConnection>(runtime, std::move(socket), ControlTiming{});
  connection->start();
  const Message hello = co_await connection->receive();
  co_return std::pair(std::move(connection), std::get<Hello>(hello));
}

/// The next message of its kind; reports may come in between.
template <class T>
asio::awaitable<T> next(std::shared_ptr<ControlConnection> connection) {
  for (;;) {
    const Message message = co_await connection->receive();
    if (const T* wanted = std::get_if<T>(&message)) co_return *wanted;
  }
}

asio::awaitable<void> fail_to_load(Node& node) {
  node.host().load_failure = "std::bad_alloc";
  const auto [connection, hello] = co_await hear(node.runtime(), node.acceptor());
  connection->send(middle_stage(1));
  const std::string reason = co_await end_of(connection);
  REQUIRE(reason == "std::bad_alloc");
}

asio::awaitable<void> fail_to_make_stages(Node& node) {
  node.host().stages_failure = "memory for 10 host pages is missing";
  const auto [connection, hello] = co_await hear(node.runtime(), node.acceptor());
  connection->send(middle_stage(1));
  const Loaded loaded = co_await next<Loaded>(connection);
  REQUIRE(loaded.page_capacity == kPages);
  connection->send(JoinRing{RingEpoch(1), {kPages, 0}, three_nodes(1)});
  const std::string reason = co_await end_of(connection);
  REQUIRE(reason == node.host().stages_failure);
}

asio::awaitable<void> measure_again(Node& node) {
  const auto [connection, hello] = co_await hear(node.runtime(), node.acceptor());
  connection->send(middle_stage(1));
  const Loaded loaded = co_await next<Loaded>(connection);
  REQUIRE(loaded.page_capacity == kPages);
  connection->send(Measure{});
  const Loaded measured = co_await next<Loaded>(connection);
  REQUIRE(measured.page_capacity == kPages - 1);
  co_await end(connection);
}

/// Stage 2, spoken by hand: takes a link, lives on, and never ends it.
class Successor {
 public:
  explicit Successor(Node& node)
      : acceptor_(node.acceptor().get_executor(), tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {}
  [[nodiscard]] uint16_t port() const { return acceptor_.local_endpoint().port(); }

  asio::awaitable<void> take_link() {
    for (size_t lane = 0; lane < comm::kLaneCount; ++lane) {
      tcp::socket socket = co_await acceptor_.async_accept(asio::use_awaitable);
      (void)co_await comm::read_handshake(socket);
      lanes_.push_back(std::move(socket));
    }
    const auto welcome = comm::encode_welcome();
    for (tcp::socket& lane : lanes_) co_await asio::async_write(lane, asio::buffer(welcome), asio::use_awaitable);
  }
  asio::awaitable<void> live(async::Runtime& runtime) {
    for (;;) {
      const auto ping = comm::encode_header({comm::kProtocolVersion, comm::FrameKind::kPing, 0, RingEpoch(1), 1, 0});
      co_await asio::async_write(lanes_[0], asio::buffer(ping), asio::use_awaitable);
      co_await async::sleep_for(runtime, 100ms);
    }
  }

 private:
  tcp::acceptor acceptor_;
  std::vector<tcp::socket> lanes_;  // control first, as the sender connects them
};

/// Makes the Member load and join epoch 1 between stage 0, whose link is returned, and `successor`.
asio::awaitable<std::unique_ptr<comm::LinkSender>> form(Node& node, std::shared_ptr<ControlConnection> connection,
                                                        uint16_t ring_port, uint64_t ring_id, Successor& successor) {
  const Assignment assignment = middle_stage(ring_id);
  connection->send(assignment);
  (void)co_await next<Loaded>(connection);
  connection->send(JoinRing{RingEpoch(1), {kPages, 0}, three_nodes(successor.port())});
  async::TaskGroup linking(node.runtime());
  linking.spawn("take the link", successor.take_link());
  auto upstream = co_await comm::connect_link(
      node.runtime(), node.links(), {"127.0.0.1", ring_port},
      link_hello(assignment, node.config(), RingEpoch(1), StageId(0), StageId(1)),
      link_options(assignment, node.config(), ControlTiming{}.silence_limit), node.runtime().now() + 60s);
  co_await linking.join();
  const RingJoined formed = co_await next<RingJoined>(connection);
  REQUIRE(formed.epoch == RingEpoch(1));
  co_return std::move(upstream.value());
}

asio::awaitable<void> change_heads_while_a_link_ends(Node& node) {
  Successor first(node);
  Successor second(node);
  async::TaskGroup living(node.runtime());
  const auto [old_head, old_hello] = co_await hear(node.runtime(), node.acceptor());
  const auto upstream = co_await form(node, old_head, old_hello.ring_port, 1, first);
  living.spawn("live", first.live(node.runtime()));
  co_await end(old_head);
  const auto [new_head, new_hello] = co_await hear(node.runtime(), node.acceptor());
  const auto again = co_await form(node, new_head, new_hello.ring_port, 2, second);
  living.cancel();
  co_await living.join();
  co_await end(new_head);
}

/// A plan with one row, for which the stage waits, since nobody sends its activations.
void send_work(comm::LinkSender& upstream) {
  sched::Plan plan;
  plan.epoch = RingEpoch(1);
  plan.opens = {{.slot = SlotId(0), .prompt_length = 1}};
  plan.slices = {{.slot = SlotId(0), .token_count = 1, .new_page_count = 1, .sample = true}};
  plan.tokens = {5};
  plan.new_pages = {PageId(2)};
  plan.digest = sched::plan_digest(0, plan.slices.front(), sched::table_digest(0, PageId(2)));
  upstream.send(comm::MessageKind::kPlan, plan.epoch, plan.id, plan.encode());
}

/// Begins to drain the node in an epoch with work, or without, whose head then acts by `head`.
asio::awaitable<void> drain_in_epoch(Node& node, bool has_work, async::Duration limit,
                                     std::function<void(ControlConnection&)> head) {
  Successor successor(node);
  async::TaskGroup living(node.runtime());
  const auto [connection, hello] = co_await hear(node.runtime(), node.acceptor());
  const auto upstream = co_await form(node, connection, hello.ring_port, 1, successor);
  living.spawn("live", successor.live(node.runtime()));
  if (has_work) send_work(*upstream);
  while (node.host().made().busy() != has_work) co_await async::sleep_for(node.runtime(), 1ms);
  async::TaskGroup draining(node.runtime());
  draining.spawn("drain", node.member().drain(limit));
  if (head) {
    const bool ended = co_await draining.join_until(node.runtime().now() + 300ms);
    REQUIRE_FALSE(ended);
    head(*connection);
  }
  const std::string reason = co_await end_of(connection);
  REQUIRE(reason == "the node is stopping");
  co_await draining.join();
  living.cancel();
  co_await living.join();
}

asio::awaitable<void> drain_before_an_epoch(Node& node) {
  const auto [connection, hello] = co_await hear(node.runtime(), node.acceptor());
  co_await node.member().drain(1h);
  const std::string reason = co_await end_of(connection);
  REQUIRE(reason == "the node is stopping");
}

asio::awaitable<void> find_the_ring_port(Node& node) {
  const auto [connection, hello] = co_await hear(node.runtime(), node.acceptor());
  tcp::socket neighbour(node.runtime().executor());
  co_await neighbour.async_connect(tcp::endpoint(node.acceptor().local_endpoint().address(), hello.ring_port),
                                   asio::use_awaitable);
  co_await end(connection);
}

/// Returns whether this machine has such an address.
bool can_listen_on(const asio::ip::address& address) {
  asio::io_context context;
  tcp::acceptor acceptor(context);
  boost::system::error_code failure;
  acceptor.open(address.is_v6() ? tcp::v6() : tcp::v4(), failure);
  if (!failure) acceptor.bind(tcp::endpoint(address, 0), failure);
  return !failure;
}

asio::awaitable<void> wait_for_line(Node& node, const test::CapturedLog& log, std::string line) {
  while (log.count(line) == 0) co_await async::sleep_for(node.runtime(), 10ms);
}

asio::awaitable<void> wait_for_lookups(Node& node, test::HangingLookup& resolver, size_t count) {
  while (resolver.count() < count) co_await async::sleep_for(node.runtime(), 1ms);
}

/// The resolver is slow at first; later the name means another host.
asio::awaitable<void> move_the_head(Node& node, test::HangingLookup& resolver, tcp::acceptor& elsewhere) {
  co_await wait_for_lookups(node, resolver, 1);
  resolver.resolve_to("127.0.0.1");
  const auto [first, first_hello] = co_await hear(node.runtime(), node.acceptor());
  resolver.resolve_to("127.0.0.2");
  co_await end(first);
  const auto [second, second_hello] = co_await hear(node.runtime(), elsewhere);
  REQUIRE(second_hello.config == first_hello.config);
  co_await end(second);
}

/// Fills the backlog of the head's port, which then answers nobody: the kernel drops what comes.
std::vector<tcp::socket> fill_backlog(asio::io_context& context, tcp::acceptor& acceptor) {
  REQUIRE(::listen(acceptor.native_handle(), 0) == 0);
  std::vector<tcp::socket> waiting;
  for (int i = 0; i < 16; ++i) {
    tcp::socket& socket = waiting.emplace_back(context, tcp::v4());
    socket.native_non_blocking(true);
    const tcp::endpoint there = acceptor.local_endpoint();
    (void)::connect(socket.native_handle(), there.data(), static_cast<socklen_t>(there.size()));
  }
  return waiting;
}

/// Another program at the head's address, which ends each connection in another way.
asio::awaitable<void> play_stranger(Node& node, const test::CapturedLog& log) {
  const std::array<std::string_view, 3> answers = {"", "HTTP/1.1 400 Bad Request\r\n\r\n", ""};
  for (const std::string_view answer : answers) {
    tcp::socket socket = co_await node.acceptor().async_accept(asio::use_awaitable);
    if (!answer.empty()) co_await asio::async_write(socket, asio::buffer(answer), asio::use_awaitable);
    socket.shutdown(tcp::socket::shutdown_send);
    co_await async::sleep_for(node.runtime(), 50ms);
  }
  // The node comes again.
  const auto [connection, hello] = co_await hear(node.runtime(), node.acceptor());
  REQUIRE(log.count("does not answer like a head") == 1);
  REQUIRE(log.count("the head at") == 0);
  co_await end(connection);
}

}  // namespace

TEST_CASE("the log says what keeps a node from its head") {
  const test::CapturedLog log;
  test::HangingLookup resolver("head.example");
  Node node(asio::ip::address_v4::loopback(), "head.example");
  const auto script = [&]() -> asio::awaitable<void> {
    const std::string begin = "the name 'head.example' ";
    co_await wait_for_line(node, log, begin + "has not been looked up yet; retrying until it answers");
    resolver.resolve_to("");
    co_await wait_for_line(node, log, begin + "cannot be looked up: ");
  };
  node.run(script());
  REQUIRE(log.count("waiting for the head at head.example:") >= 2);
}

TEST_CASE("a stranger at the address of the head is logged once") {
  const test::CapturedLog log;
  Node node;
  node.run(play_stranger(node, log));
}

TEST_CASE("a node that cannot load says why and leaves") {
  Node node;
  node.run(fail_to_load(node));
}

TEST_CASE("a node that cannot make its stages says why and leaves") {
  Node node;
  node.run(fail_to_make_stages(node));
}

TEST_CASE("a node measures its memory as often as it is asked") {
  Node node;
  node.run(measure_again(node));
}

TEST_CASE("a node joins a new ring while an old link still ends") {
  Node node;
  node.run(change_heads_while_a_link_ends(node));
}

TEST_CASE("a node is reached by the protocol it used to reach the head") {
  Node node;
  node.run(find_the_ring_port(node));
  const auto loopback_v6 = asio::ip::make_address("::1");
  if (!can_listen_on(loopback_v6)) return;
  Node by_v6(loopback_v6);
  by_v6.run(find_the_ring_port(by_v6));
}

TEST_CASE("a node can be stopped while the name of its head is resolved") {
  test::HangingLookup resolver("head.example");
  Node node(asio::ip::address_v4::loopback(), "head.example");
  node.run(wait_for_lookups(node, resolver, 1));
}

TEST_CASE("a node resolves the name of its head anew at each try") {
  test::HangingLookup resolver("head.example");
  Node node(asio::ip::address_v4::loopback(), "head.example");
  const tcp::endpoint moved(asio::ip::make_address("127.0.0.2"), node.acceptor().local_endpoint().port());
  tcp::acceptor elsewhere(node.runtime().executor(), moved);
  node.run(move_the_head(node, resolver, elsewhere));
}

TEST_CASE("a node whose head neither answers nor refuses can be stopped") {
  const test::CapturedLog log;
  Node node;
  asio::io_context context;
  const auto waiting = fill_backlog(context, node.acceptor());
  node.run(wait_for_line(node, log, ": no answer; retrying until it answers"));
}

TEST_CASE("a node that drains serves until the head ends the epoch") {
  Node node;
  node.run(drain_in_epoch(node, true, 1h, [](ControlConnection& head) { head.send(Stop{RingEpoch(1), "drained"}); }));
}

TEST_CASE("a node that drains in a busy ring leaves after its limit") {
  const test::CapturedLog log;
  Node node;
  node.run(drain_in_epoch(node, true, 100ms, {}));
  REQUIRE(log.count("leaving the ring although it has requests") == 1);
}

TEST_CASE("a node that drains leaves an idle ring at once") {
  Node node;
  node.run(drain_in_epoch(node, false, 1h, {}));
}

TEST_CASE("a node that drains before an epoch leaves at once") {
  Node node;
  node.run(drain_before_an_epoch(node));
}
