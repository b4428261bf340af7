#include "cluster/coordinator.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/log.h"
#include "cluster/node_link.h"
#include "comm/in_process_link.h"

namespace millrace::cluster {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using boost::system::error_code;

/// So often the log names what is still missing.
constexpr async::Duration kReminder = 5s;

[[noreturn]] void throw_interrupted() { throw ErrorException(Error{ErrorCode::kAborted, "the head is stopping"}); }

}  // namespace

Coordinator::Coordinator(async::Runtime& runtime, CoordinatorOptions options)
    : runtime_(runtime),
      options_(std::move(options)),
      head_links_(runtime),
      tasks_(runtime),
      changed_(runtime),
      nodes_(options_.assignments.size()),
      channel_choice_(options_.require_channels),
      reports_(options_.assignments) {}

Coordinator::~Coordinator() = default;

Result<void> Coordinator::open() {
  const comm::TcpEndpoint& address = options_.address;
  error_code failure;
  tcp::resolver resolver(runtime_.executor());
  const auto found = resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::passive, failure);
  if (failure) {
    return make_error(ErrorCode::kInvalidArgument, "--dist-init-addr {}: {}", address.to_string(), failure.message());
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_ = std::make_unique<tcp::acceptor>(runtime_.executor());
  acceptor_->open(endpoint.protocol(), failure);
  if (!failure) acceptor_->set_option(asio::socket_base::reuse_address(true), failure);
  if (!failure) acceptor_->bind(endpoint, failure);
  if (!failure) acceptor_->listen(asio::socket_base::max_listen_connections, failure);
  if (failure) {
    return make_error(ErrorCode::kUnavailable, "--dist-init-addr {}: {}", address.to_string(), failure.message());
  }
  auto listener = comm::TcpListener::open(runtime_, {address.host, 0});
  if (listener.has_error()) return listener.error();
  ring_listener_ = std::move(*listener);
  return {};
}

StageId Coordinator::last_local_stage() const {
  return StageId(static_cast<uint32_t>(options_.assignments.front().layers.size()) - 1);
}

asio::awaitable<void> Coordinator::serve() {
  tasks_.spawn("accept nodes", accept_nodes());
  while (!interrupted_) co_await changed_.wait();
  error_code ignored;
  acceptor_->close(ignored);
  for (Node& node : nodes_) {
    if (node.connection) node.connection->close("the head is stopping");
  }
  co_await tasks_.join();
  co_await ring_listener_->shutdown();
  co_await head_links_.shutdown();
}

asio::awaitable<void> Coordinator::accept_nodes() {
  while (!interrupted_) {
    tcp::socket socket(runtime_.executor());
    error_code failure;
    co_await acceptor_->async_accept(socket, asio::redirect_error(asio::use_awaitable, failure));
    if (interrupted_) co_return;
    if (failure) {
      co_await async::sleep_for(runtime_, 100ms);  // out of descriptors, say
      continue;
    }
    auto connection = std::make_shared<ControlConnection>(runtime_, std::move(socket), options_.timing);
    tasks_.spawn("serve node", serve_node(std::move(connection)));
  }
}

std::string Coordinator::refusal(const Hello& hello) const {
  if (hello.protocol != kProtocolVersion) {
    return fmt::format("it speaks protocol {}, wanted {}", hello.protocol, kProtocolVersion);
  }
  if (hello.node_count != nodes_.size()) {
    return fmt::format("it was started with --nnodes {}, the head with {}", hello.node_count, nodes_.size());
  }
  if (hello.node_rank == 0 || hello.node_rank >= nodes_.size()) {
    return fmt::format("its --node-rank is {}, wanted 1 to {}", hello.node_rank, nodes_.size() - 1);
  }
  const model::Fingerprint wanted = model::fingerprint(options_.config);
  if (hello.config != wanted) {
    return fmt::format("its model has fingerprint {}, the head's {}", hello.config.to_string(), wanted.to_string());
  }
  if (const auto& taken = nodes_[hello.node_rank].connection) {
    return fmt::format("node rank {} is connected already, from {}", hello.node_rank, taken->peer());
  }
  return {};
}

asio::awaitable<void> Coordinator::serve_node(std::shared_ptr<ControlConnection> connection) {
  connection->start();
  std::string problem;
  try {
    const Message first = co_await connection->receive();
    const auto* hello = std::get_if<Hello>(&first);
    problem = hello != nullptr ? refusal(*hello) : "it did not say hello";
    if (problem.empty()) {
      Node& node = nodes_[hello->node_rank];
      node = Node{};
      node.connection = connection;
      node.ring_port = hello->ring_port;
      log::info("{} is there, from {}", reports_.name(hello->node_rank), connection->peer());
      connection->send(options_.assignments[hello->node_rank]);
      co_await listen_to(hello->node_rank, connection);
    }
  } catch (const std::exception& failure) {
    problem = failure.what();
  }
  if (!problem.empty()) log::warn("a node at {} was refused: {}", connection->peer(), problem);
  connection->close(problem);
  co_await connection->join();
}

asio::awaitable<void> Coordinator::listen_to(uint32_t rank, std::shared_ptr<ControlConnection> connection) {
  std::string reason;
  try {
    for (;;) {
      const Message message = co_await connection->receive();
      handle(rank, message);
    }
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  const bool took_part = nodes_[rank].joined != Generation(0);
  nodes_[rank] = Node{};
  reports_.set_links(rank, {});
  reports_.set_stores(rank, {});
  reports_.set_compute(rank, {});
  if (!interrupted_) log::warn("{} is gone: {}", reports_.name(rank), reason);
  if (took_part) lose(rank, reason);
  changed_.notify_all();
}

void Coordinator::handle(uint32_t rank, const Message& message) {
  Node& node = nodes_[rank];
  if (const auto* loaded = std::get_if<Loaded>(&message)) {
    if (pages_.device > loaded->page_capacity) {
      node.connection->close(fmt::format("its memory holds {} pages of KV cache, the ring was made for {}",
                                         loaded->page_capacity, pages_.device));
      return;
    }
    if (!fingerprint_.empty() && loaded->stages != stages_of_[rank]) {
      node.connection->close(
          "its weights, or what it computes with, are others than when the ring opened its page stores: start the head "
          "again");
      return;
    }
    node.page_capacity = loaded->page_capacity;
    node.stages = loaded->stages;
    node.first_channels = loaded->first;
    node.last_channels = loaded->last;
    reports_.set_compute(rank, loaded->compute);
    log::info("{} has loaded its layers and has room for {} pages", reports_.name(rank), loaded->page_capacity);
  } else if (const auto* formed = std::get_if<Formed>(&message)) {
    if (formed->generation == node.joined) node.formed = true;
  } else if (const auto* stopped = std::get_if<Stopped>(&message)) {
    if (stopped->generation == node.joined) {
      node.joined = Generation(0);
      node.formed = false;
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

std::vector<comm::LinkStats> Coordinator::link_stats() const {
  std::vector<comm::LinkStats> all = head_links_.stats();
  for (comm::LinkStats& link : reports_.links()) all.push_back(std::move(link));
  const std::lock_guard lock(stats_mutex_);
  if (stage_links_) {
    for (comm::LinkStats& link : stage_links_->stats()) all.push_back(std::move(link));
  }
  return all;
}

void Coordinator::lose(uint32_t rank, const std::string& reason) {
  lost_ = fmt::format("{}: {}", reports_.name(rank), reason);
  if (on_lost_) on_lost_(lost_);
}

asio::awaitable<void> Coordinator::until_all(bool (*ready)(const Node&), const char* what) {
  for (;;) {
    std::string missing;
    for (uint32_t rank = 1; rank < nodes_.size(); ++rank) {
      if (!ready(nodes_[rank])) missing += (missing.empty() ? "" : ", ") + reports_.name(rank);
    }
    if (interrupted_) throw_interrupted();
    if (on_waiting_) on_waiting_(missing.empty() ? missing : "forming: waiting for " + missing);
    if (missing.empty()) co_return;
    const async::TimePoint reminder = runtime_.now() + kReminder;
    const bool changed = co_await changed_.wait_until(reminder);
    if (!changed) log::info("waiting for {} to {}", missing, what);
  }
}

asio::awaitable<Coordinator::LoadedRing> Coordinator::all_loaded(std::string compute, std::vector<std::string> stages) {
  reports_.set_compute(0, compute);
  co_await until_all([](const Node& node) { return node.page_capacity.has_value(); }, "come and load");
  LoadedRing ring{UINT64_MAX, {}};
  stages_of_.assign(1, stages);
  for (uint32_t rank = 1; rank < nodes_.size(); ++rank) {
    const Node& node = nodes_[rank];
    ring.page_capacity = std::min(ring.page_capacity, *node.page_capacity);
    stages_of_.push_back(node.stages);
    stages.insert(stages.end(), node.stages.begin(), node.stages.end());
  }
  if (!stages.empty()) fingerprint_ = model::fingerprint(stages).to_string();
  ring.fingerprint = fingerprint_;
  co_return ring;
}

void Coordinator::set_local(sched::LocalStages& stages, PoolSizes pages) {
  stages_ = &stages;
  pages_ = pages;
  nodes_.front().last_channels = stages.last_channels();
  const std::lock_guard lock(stats_mutex_);
  stage_links_ = std::make_unique<comm::TcpLinkGroup>(stages.last_runtime());
}

void Coordinator::interrupt() {
  interrupted_ = true;
  changed_.notify_all();
}

std::vector<bool> Coordinator::choose_channels() {
  std::vector<bool> channels(nodes_.size(), false);
  for (uint32_t rank = 0; rank + 1 < nodes_.size(); ++rank) {
    channels[rank] = channel_choice_.choose(StageId(options_.assignments[rank + 1].first_stage),
                                            nodes_[rank].last_channels, nodes_[rank + 1].first_channels);
  }
  return channels;
}

void Coordinator::send_forms(Generation generation) {
  for (uint32_t rank = 1; rank < nodes_.size(); ++rank) {
    Form form{generation, pages_, {}, ring_listener_->endpoint().port};
    if (rank + 1 < nodes_.size()) {
      form.next_host = nodes_[rank + 1].connection->peer_host();
      form.next_port = nodes_[rank + 1].ring_port;
    }
    form.channel_in = channels_[rank - 1];
    form.channel_out = rank + 1 < nodes_.size() && channels_[rank];
    form.fingerprint = fingerprint_;
    nodes_[rank].joined = generation;
    nodes_[rank].connection->send(form);
  }
}

asio::awaitable<void> Coordinator::accept_output_link(Generation generation, async::TimePoint deadline,
                                                      Links& links) {
  const Assignment& own = options_.assignments.front();
  const auto hello =
      link_hello(own, options_.config, generation, StageId(own.stage_count - 1), comm::kHeadPlace);
  links.receiver =
      co_await ring_listener_->accept_link(head_links_, hello, link_options(own, options_.config), deadline);
  changed_.notify_all();
}

asio::awaitable<void> Coordinator::connect_next_node(Generation generation, async::TimePoint deadline, Links& links) {
  const Assignment& own = options_.assignments.front();
  const StageId from = last_local_stage();
  const auto hello = link_hello(own, options_.config, generation, from, StageId(from.value() + 1));
  const comm::TcpEndpoint next{nodes_[1].connection->peer_host(), nodes_[1].ring_port};
  auto link =
      co_await comm::connect_link(runtime_, *stage_links_, next, hello, link_options(own, options_.config), deadline);
  if (channels_[0] && !link.has_error()) {
    link =
        co_await stages_->add_channel(std::move(*link), channel_options(generation, from, StageId(from.value() + 1)));
  }
  links.sender = std::move(link);
  changed_.notify_all();
}

asio::awaitable<void> Coordinator::until_joined(Generation generation, async::TimePoint deadline, const Links& links) {
  for (;;) {
    if (interrupted_) throw_interrupted();
    if (!lost_.empty()) throw ErrorException(Error{ErrorCode::kUnavailable, lost_});
    if (links.receiver && links.receiver->has_error()) throw ErrorException(links.receiver->error());
    if (links.sender && links.sender->has_error()) throw ErrorException(links.sender->error());
    const auto late = std::find_if(nodes_.begin() + 1, nodes_.end(), [](const Node& node) { return !node.formed; });
    if (links.receiver && links.sender && late == nodes_.end()) co_return;
    // The links end by themselves at the deadline, and say more.
    const bool channels = std::find(channels_.begin(), channels_.end(), true) != channels_.end();
    const bool changed = co_await changed_.wait_until(deadline + 1s + (channels ? kChannelTimeout : 0s));
    if (!changed) {
      const auto rank = static_cast<uint32_t>(late - nodes_.begin());
      throw ErrorException(
          make_error(ErrorCode::kTimeout, "{} did not join generation {}", reports_.name(rank), generation.value()));
    }
  }
}

asio::awaitable<sched::RingEnds> Coordinator::form(Generation generation) {
  co_await until_all([](const Node& node) { return node.page_capacity.has_value() && node.joined == Generation(0); },
                     "come, load, or end the last generation");
  const async::TimePoint deadline = runtime_.now() + options_.form_timeout;
  lost_.clear();
  channels_ = choose_channels();
  send_forms(generation);
  Links links;
  async::TaskGroup linking(runtime_);
  linking.spawn("accept the link from the last stage", accept_output_link(generation, deadline, links));
  linking.spawn("connect to the next node", connect_next_node(generation, deadline, links));
  std::exception_ptr failure;
  try {
    co_await until_joined(generation, deadline, links);
  } catch (...) {
    failure = std::current_exception();
  }
  linking.cancel();
  co_await linking.join();
  if (failure) std::rethrow_exception(failure);
  comm::Link in = comm::make_in_process_link(runtime_, stages_->first_runtime(),
                                             options_.assignments.front().window + 1);
  stages_->start(std::move(in.receiver), std::move(**links.sender));
  co_return sched::RingEnds{std::move(in.sender), std::move(**links.receiver)};
}

asio::awaitable<void> Coordinator::dissolve(Generation generation, std::string reason) {
  for (uint32_t rank = 1; rank < nodes_.size(); ++rank) {
    if (nodes_[rank].joined == generation) nodes_[rank].connection->send(Stop{generation, reason});
  }
  stages_->stop(reason);
  co_await stages_->join();
  // Those that are lost or stop late are waited for by the next form().
}

}  // namespace millrace::cluster
