#include "cluster/node_roster.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "async/deadline.h"
#include "base/log.h"
#include "cluster/head_address.h"

namespace millrace::cluster {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using boost::system::error_code;

/// Pause after a failed accept, most likely for lack of file descriptors.
constexpr async::Duration kAcceptRetry = 1s;
/// Interval at which the log names the missing nodes.
constexpr async::Duration kRosterReminder = 5s;

}  // namespace

NodeRoster::NodeRoster(async::Runtime& runtime, const std::vector<Assignment>& assignments,
                       const model::ModelConfig& config, ControlTiming timing)
    : runtime_(runtime),
      assignments_(assignments),
      config_(config),
      timing_(timing),
      tasks_(runtime),
      changed_(runtime),
      nodes_(assignments.size()),
      reports_(assignments) {}

Result<void> NodeRoster::listen(const comm::TcpEndpoint& address, const std::stop_token& stop) {
  auto listening = listen_as_head(runtime_.executor(), address, stop);
  if (listening.has_error()) return listening.error();
  acceptor_ = std::move(*listening);
  return {};
}

asio::awaitable<void> NodeRoster::serve() {
  tasks_.spawn("accept nodes", accept_connections());
  while (!interrupted_) co_await changed_.wait();
  error_code ignored;
  acceptor_->close(ignored);
  for (Node& node : nodes_) {
    if (node.connection) node.connection->close("the head is stopping");
  }
  for (const auto& stranger : pending_connections_) stranger->close("the head is stopping");
  co_await tasks_.join();
}

void NodeRoster::interrupt() {
  interrupted_ = true;
  changed_.notify_all();
}

void NodeRoster::check_interrupted() const {
  if (interrupted_) throw ErrorException(Error{ErrorCode::kAborted, "the head is stopping"});
}

asio::awaitable<void> NodeRoster::accept_connections() {
  while (!interrupted_) {
    tcp::socket socket(runtime_.executor());
    error_code failure;
    co_await acceptor_->async_accept(socket, asio::redirect_error(asio::use_awaitable, failure));
    if (interrupted_) co_return;
    if (failure) {
      log::warn("a connection to the control port cannot be accepted: {}", failure.message());
      co_await async::sleep_for(runtime_, kAcceptRetry);
      continue;
    }
    auto connection = std::make_shared<ControlConnection>(runtime_, std::move(socket), timing_);
    const bool full = pending_connections_.size() >= kMaxPendingConnections;
    if (full && !rejects_connections_) {
      log::warn("{} is turned away, as are others from now on: {} connections have not said hello yet",
                connection->peer(), pending_connections_.size());
    }
    rejects_connections_ = full;
    if (full) {
      reports_.count_refusal();
      continue;
    }
    pending_connections_.push_back(connection);
    tasks_.spawn("serve node", serve_node(std::move(connection)));
  }
}

std::string NodeRoster::refusal(const Hello& hello) const {
  if (hello.protocol != kProtocolVersion) {
    return fmt::format("it speaks protocol {}, wanted {}", hello.protocol, kProtocolVersion);
  }
  if (hello.node_count != nodes_.size()) {
    return fmt::format("it was started with --nnodes {}, the head with {}", hello.node_count, nodes_.size());
  }
  if (hello.node_rank == 0 || hello.node_rank >= nodes_.size()) {
    return fmt::format("its --node-rank is {}, wanted 1 to {}", hello.node_rank, nodes_.size() - 1);
  }
  const model::Fingerprint wanted = model::fingerprint(config_);
  if (hello.config != wanted) {
    return fmt::format("its model has fingerprint {}, the head's {}", hello.config.to_string(), wanted.to_string());
  }
  if (const auto& taken = nodes_[hello.node_rank].connection) {
    return fmt::format("node rank {} is connected already, from {}", hello.node_rank, taken->peer());
  }
  return {};
}

asio::awaitable<Message> NodeRoster::first_message(std::shared_ptr<ControlConnection> connection) {
  const async::Deadline deadline(runtime_, runtime_.now() + kHelloTimeout, [&connection] {
    connection->close(fmt::format("no hello arrived within {} s", kHelloTimeout / 1s));
  });
  Message message = co_await connection->receive();
  co_return message;
}

asio::awaitable<void> NodeRoster::serve_node(std::shared_ptr<ControlConnection> connection) {
  connection->start();
  std::string problem;
  try {
    const Message first = co_await first_message(connection);
    const auto* hello = std::get_if<Hello>(&first);
    problem = hello != nullptr ? refusal(*hello) : "it did not say hello";
    if (problem.empty()) {
      pending_connections_.remove(connection);
      Node& node = nodes_[hello->node_rank];
      node = Node{};
      node.connection = connection;
      node.ring_port = hello->ring_port;
      connection->on_quiet([this, rank = hello->node_rank](bool quiet) { set_quiet(rank, quiet); });
      if (on_arrival_) on_arrival_(hello->node_rank);
      log::info("{} has connected, from {}", reports_.name(hello->node_rank), connection->peer());
      if (assignments_sent_) connection->send(assignments_[hello->node_rank]);
      co_await handle_messages(hello->node_rank, connection);
    }
  } catch (const std::exception& failure) {
    problem = failure.what();
  }
  if (!problem.empty() && !interrupted_) {
    log::warn("a node at {} was refused: {}", connection->peer(), problem);
    reports_.count_refusal();
  }
  connection->close(problem);
  co_await connection->join();
  pending_connections_.remove(connection);
}

asio::awaitable<void> NodeRoster::handle_messages(uint32_t rank, std::shared_ptr<ControlConnection> connection) {
  std::string reason;
  try {
    for (;;) {
      const Message message = co_await connection->receive();
      handle(rank, message);
    }
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  const bool took_part = nodes_[rank].joining != RingEpoch(0);
  const bool was_quiet = nodes_[rank].quiet;
  connection->on_quiet({});
  nodes_[rank] = Node{};
  reports_.set_links(rank, {});
  reports_.set_stores(rank, {});
  reports_.set_compute(rank, {});
  if (!interrupted_) log::warn("{} is gone: {}", reports_.name(rank), reason);
  if (took_part) lose(rank, reason);
  if (was_quiet) report_quiet();
  changed_.notify_all();
}

void NodeRoster::set_quiet(uint32_t rank, bool quiet) {
  nodes_[rank].quiet = quiet;
  if (quiet) {
    log::warn("{} has been silent for {:.1f} s; it is declared lost after {:.1f} s (--ring-timeout)",
              reports_.name(rank), async::to_seconds(timing_.quiet_limit), async::to_seconds(timing_.silence_limit));
  } else {
    log::info("{} sends again", reports_.name(rank));
  }
  report_quiet();
}

void NodeRoster::report_quiet() const {
  std::string quiet;
  for (uint32_t rank = 1; rank < nodes_.size(); ++rank) {
    if (nodes_[rank].quiet) quiet += (quiet.empty() ? "" : ", ") + reports_.name(rank);
  }
  if (!quiet.empty()) quiet += fmt::format(" has been silent for {:.1f} s", async::to_seconds(timing_.quiet_limit));
  if (on_quiet_) on_quiet_(quiet);
}

void NodeRoster::handle(uint32_t rank, const Message& message) {
  Node& node = nodes_[rank];
  if (const auto* loaded = std::get_if<Loaded>(&message)) {
    node.page_capacity = loaded->page_capacity;
    node.host_page_capacity = loaded->host_page_capacity;
    node.sequence_capacity = loaded->sequence_capacity;
    node.expert_port = loaded->expert_port;
    // A second report, of a node that was asked to measure while it loaded, says nothing new.
    if (node.joining == RingEpoch(0)) node.agreed = loaded->pools == pools_ && pools_ != cache::PoolSizes{};
    node.contents = loaded->contents;
    node.first_channels = loaded->first;
    node.last_channels = loaded->last;
    reports_.set_compute(rank, loaded->compute);
    if (node.agreed) {
      log::info("{} has kept its layers and its pool of {} pages", reports_.name(rank), loaded->pools.device);
    } else {
      log::info("{} has loaded its layers and has room for {} pages", reports_.name(rank), loaded->page_capacity);
    }
  } else if (const auto* formed = std::get_if<RingJoined>(&message)) {
    if (formed->epoch == node.joining) node.ring_joined = true;
  } else if (const auto* stopped = std::get_if<Stopped>(&message)) {
    if (stopped->epoch == node.joining) {
      node.joining = RingEpoch(0);
      node.ring_joined = false;
      if (stopped->lost_channel != StageId(0) && on_lost_channel_) {
        on_lost_channel_(stopped->lost_channel, stopped->reason);
      }
      lose(rank, stopped->reason);
    }
  } else if (const auto* report = std::get_if<LinkReport>(&message)) {
    reports_.set_links(rank, report->links);
    return;
  } else if (const auto* stores = std::get_if<StoreReport>(&message)) {
    reports_.set_stores(rank, stores->stores);
    return;
  }
  changed_.notify_all();
}

void NodeRoster::send_assignments() {
  assignments_sent_ = true;
  for (size_t rank = 0; rank < nodes_.size(); ++rank) {
    if (nodes_[rank].connection) nodes_[rank].connection->send(assignments_[rank]);
  }
}

bool NodeRoster::agreed() const {
  return std::all_of(nodes_.begin() + 1, nodes_.end(), [](const Node& node) { return node.agreed; });
}

void NodeRoster::set_agreed(bool agreed) {
  for (Node& node : nodes_) node.agreed = agreed;
}

asio::awaitable<void> NodeRoster::measure_all() {
  set_agreed(false);
  for (Node& node : nodes_) {
    if (!node.connection) continue;
    node.page_capacity.reset();
    node.connection->send(Measure{});
  }
  co_await wait_for_all([](const Node& node) { return node.page_capacity.has_value(); }, "measure their memory");
}

void NodeRoster::lose(uint32_t rank, const std::string& reason) {
  lost_ = fmt::format("{}: {}", reports_.name(rank), reason);
  if (on_lost_) on_lost_(lost_);
}

asio::awaitable<void> NodeRoster::wait_for_all(bool (*ready)(const Node&), const char* what) {
  for (;;) {
    std::string missing;
    for (uint32_t rank = 1; rank < nodes_.size(); ++rank) {
      if (!ready(nodes_[rank])) missing += (missing.empty() ? "" : ", ") + reports_.name(rank);
    }
    check_interrupted();
    if (on_waiting_) on_waiting_(missing.empty() ? missing : "forming: waiting for " + missing);
    if (missing.empty()) co_return;
    const async::TimePoint reminder = runtime_.now() + kRosterReminder;
    const bool changed = co_await changed_.wait_until(reminder);
    if (!changed) log::info("waiting for {} to {}", missing, what);
  }
}

}  // namespace millrace::cluster
