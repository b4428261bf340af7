#include "cluster/coordinator.h"

#include <algorithm>

#include "base/log.h"
#include "cluster/node_link.h"
#include "comm/in_process_link.h"

namespace millrace::cluster {
namespace {

using namespace std::chrono_literals;

bool is_ready(const NodeRoster::Node& node) {
  return node.page_capacity && node.joining == RingEpoch(0);
}

}  // namespace

Coordinator::Coordinator(async::Runtime& runtime, CoordinatorOptions options)
    : runtime_(runtime),
      options_(std::move(options)),
      assignments_(options_.assignments),
      roster_(runtime, assignments_, options_.config, options_.timing),
      head_links_(runtime),
      loader_(runtime),
      channel_selector_(options_.require_channels) {
  roster_.on_arrival([this](uint32_t rank) { forget_channels(rank); });
  roster_.on_lost_channel(
      [this](StageId stage, const std::string& reason) { channel_selector_.give_up(stage, reason); });
}

Coordinator::~Coordinator() = default;

Result<void> Coordinator::open(const std::stop_token& stop) {
  RETURN_IF_ERROR(roster_.listen(options_.address, stop));
  // The last node finds the head where it has found the coordinator.
  auto listener = comm::TcpListener::open(runtime_, {roster_.listening_host(), 0});
  if (listener.has_error()) return listener.error();
  ring_listener_ = std::move(*listener);
  return {};
}

void Coordinator::set_layers(const std::vector<model::LayerRange>& layers) {
  for (Assignment& node : assignments_) {
    const auto first = layers.begin() + node.first_stage;
    std::copy_n(first, node.layers.size(), node.layers.begin());
  }
  roster_.send_assignments();
}

bool Coordinator::hosts_last_leader() const {
  return assignments_.front().part().hosts(StageId(assignments_.front().stage_count - 1), 0);
}

asio::awaitable<void> Coordinator::serve() {
  co_await roster_.serve();
  co_await ring_listener_->shutdown();
  co_await head_links_.shutdown();
}

std::vector<comm::LinkStats> Coordinator::link_stats() const {
  std::vector<comm::LinkStats> all = head_links_.stats();
  for (comm::LinkStats& link : roster_.reports().links()) all.push_back(std::move(link));
  const std::lock_guard lock(stats_mutex_);
  if (stages_ != nullptr) {
    for (comm::LinkStats& link : stages_->link_stats()) all.push_back(std::move(link));
  }
  return all;
}

asio::awaitable<LoadedRing> Coordinator::wait_until_loaded(std::string compute, model::PageContents contents) {
  roster_.reports().set_compute(0, compute);
  co_await roster_.wait_for_all([](const Node& node) { return node.page_capacity.has_value(); }, "come and load");
  co_return summarize(std::move(contents));
}

/// Counts the memory of the other nodes, all of which have loaded: from now on they are agreed on what follows from it.
LoadedRing Coordinator::summarize(model::PageContents contents) {
  LoadedRing ring;
  std::vector<Node>& nodes = roster_.nodes();
  for (auto node = nodes.begin() + 1; node != nodes.end(); ++node) {
    node->agreed = true;
    ring.page_capacity = std::min(ring.page_capacity, *node->page_capacity);
    ring.host_page_capacity = std::min(ring.host_page_capacity, node->host_page_capacity);
    ring.sequence_capacity = std::min(ring.sequence_capacity, node->sequence_capacity);
    contents.add(node->contents);
  }
  if (!contents.ranks.empty()) {
    contents_ = model::ring_contents(contents);
    // Rings that share experts name pages together, epoch by epoch.
    if (!assignments_.front().stage.shares_experts()) {
      set_fingerprint(model::page_fingerprint({&*contents_, 1}).to_string());
    }
  }
  ring.fingerprint = fingerprint_;
  return ring;
}

void Coordinator::set_fingerprint(std::string fingerprint) {
  if (!fingerprint_.empty() && fingerprint != fingerprint_) {
    log::warn("the weights of the ring, or what computes with them, have changed: pages stored so far are not used");
  }
  fingerprint_ = std::move(fingerprint);
}

void Coordinator::set_local(PoolHost& local, sched::LocalStages& stages, cache::PoolSizes pages) {
  local_ = &local;
  pages_ = pages;
  local_fingerprint_ = fingerprint_;
  roster_.set_pools(pages);
  roster_.nodes().front().last_channels = stages.last_channels();
  set_stages(&stages);
}

void Coordinator::set_stages(sched::LocalStages* stages) {
  const std::lock_guard lock(stats_mutex_);
  stages_ = stages;
}

/// Decides the sizes of the pools again, and makes this node's. Nodes on one host share its memory: a first round of
/// measuring frees the pools, so that the second counts them as available.
asio::awaitable<void> Coordinator::agree_on_pools() {
  log::info("a node has come anew: all nodes free their page pools and measure their memory");
  set_stages(nullptr);
  Result<Loaded> own = Error{};
  for (int round = 0; round < 2; ++round) {
    own = co_await loader_.run<Loaded>([this] { return local_->measure(); });
    if (own.has_error()) throw ErrorException(own.error());
    co_await roster_.measure_all();
  }
  LoadedRing ring = summarize(std::move(own->contents));
  ring.page_capacity = std::min(ring.page_capacity, own->page_capacity);
  ring.host_page_capacity = std::min(ring.host_page_capacity, own->host_page_capacity);
  ring.sequence_capacity = std::min(ring.sequence_capacity, own->sequence_capacity);
  const auto pages = options_.pool_sizes(ring);
  if (pages.has_error()) throw ErrorException(pages.error());
  pages_ = *pages;
  roster_.set_pools(pages_);
  co_await make_stages();
}

/// Makes the stages of this node, whose pools are freed.
asio::awaitable<void> Coordinator::make_stages() {
  const auto stages = co_await loader_.run<sched::LocalStages*>(
      [this] { return local_->stages(assignments_.front(), pages_, fingerprint_); });
  if (stages.has_error()) throw ErrorException(stages.error());
  local_fingerprint_ = fingerprint_;
  set_stages(*stages);
}

/// Makes the stages of this node again where stored pages have other names now. The other nodes do so by themselves.
asio::awaitable<void> Coordinator::name_pages() {
  if (fingerprint_ == local_fingerprint_) co_return;
  set_stages(nullptr);
  const auto freed = co_await loader_.run<Loaded>([this] { return local_->measure(); });
  if (freed.has_error()) throw ErrorException(freed.error());
  co_await make_stages();
}

std::vector<bool> Coordinator::choose_channels() {
  const std::vector<Node>& nodes = roster_.nodes();
  std::vector<bool> channels(nodes.size(), false);
  if (assignments_.front().stage.rank_count > 1) return channels;  // the ranks' activations go through the hosts
  for (uint32_t rank = 0; rank + 1 < nodes.size(); ++rank) {
    channels[rank] = channel_selector_.choose(StageId(assignments_[rank + 1].first_stage), nodes[rank].last_channels,
                                              nodes[rank + 1].first_channels);
  }
  return channels;
}

/// Allows the channels of a node that has connected anew, since its network and libraries may have changed.
void Coordinator::forget_channels(uint32_t rank) {
  channel_selector_.forget(StageId(assignments_[rank].first_stage));
  if (rank + 1 < assignments_.size()) channel_selector_.forget(StageId(assignments_[rank + 1].first_stage));
}

void Coordinator::check_rank_devices() {
  const std::vector<Node>& nodes = roster_.nodes();
  for (uint32_t rank = 1; rank < nodes.size(); ++rank) {
    // All earlier nodes of the stage count: any two may have one device. A stage begins with the node of its rank 0.
    for (uint32_t other = rank; assignments_[other].first_rank > 0;) {
      --other;
      const std::string obstacle = rank_obstacle(nodes[other].last_channels, nodes[rank].last_channels);
      if (obstacle.empty()) continue;
      throw ErrorException(make_error(ErrorCode::kUnavailable, "the ranks of {} and of {} cannot exchange: {}",
                                      roster_.reports().name(other), roster_.reports().name(rank), obstacle));
    }
  }
}

bool Coordinator::opens_on_devices() {
  const bool divides_stage = assignments_.front().part().rank_count < assignments_.front().stage.rank_count;
  // Stages may differ in their devices.
  const bool has_device = std::ranges::any_of(
      roster_.nodes(), [](const NodeRoster::Node& node) { return !node.last_channels.device.empty(); });
  return (divides_stage && has_device) || std::ranges::find(channels_, true) != channels_.end();
}

std::vector<JoinedNode> Coordinator::joined_nodes() {
  std::vector<JoinedNode> joined;
  for (size_t rank = 0; rank < assignments_.size(); ++rank) {
    const Node& node = roster_.nodes()[rank];
    JoinedNode& each = joined.emplace_back();
    each.part = assignments_[rank].part();
    each.port = rank == 0 ? ring_listener_->endpoint().port : node.ring_port;
    if (rank > 0) each.host = node.connection->peer_host();
  }
  return joined;
}

void Coordinator::send_join_requests(RingEpoch epoch, const std::vector<JoinedNode>& joined) {
  std::vector<Node>& nodes = roster_.nodes();
  comm::ExpertEpoch experts_for_others = experts_;
  for (comm::RankEndpoints& ring : experts_for_others.endpoints) ring = comm::for_others(std::move(ring));
  for (uint32_t rank = 1; rank < nodes.size(); ++rank) {
    JoinRing join{.epoch = epoch, .pages = pages_, .nodes = joined, .fingerprint = fingerprint_};
    join.experts = experts_for_others;
    join.channel_in = channels_[rank - 1];
    join.channel_out = rank + 1 < nodes.size() && channels_[rank];
    nodes[rank].joining = epoch;
    nodes[rank].connection->send(join);
  }
}

asio::awaitable<void> Coordinator::accept_output_link(RingEpoch epoch, async::TimePoint deadline, OutputLink& link) {
  const Assignment& own = assignments_.front();
  const auto hello = link_hello(own, options_.config, epoch, StageId(own.stage_count - 1), comm::kHeadId);
  link = co_await ring_listener_->accept_link(
      head_links_, hello, link_options(own, options_.config, options_.timing.silence_limit), deadline);
  roster_.notify();
}

asio::awaitable<void> Coordinator::wait_until_joined(RingEpoch epoch, async::TimePoint deadline,
                                                     const OutputLink& output, const EpochLinks& links) {
  const std::vector<Node>& nodes = roster_.nodes();
  for (;;) {
    roster_.check_interrupted();
    if (!roster_.lost().empty()) throw ErrorException(Error{ErrorCode::kUnavailable, roster_.lost()});
    if (output && output->has_error()) throw ErrorException(output->error());
    if (links.failure()) throw ErrorException(*links.failure());
    const auto late = std::find_if(nodes.begin() + 1, nodes.end(), [](const Node& node) { return !node.ring_joined; });
    if ((output || hosts_last_leader()) && links.complete() && late == nodes.end()) co_return;
    // The links fail by themselves at the deadline, with better messages.
    const bool changed = co_await roster_.wait_for_change(
        deadline + 1s + (opens_on_devices() ? open_timeout(options_.transfer_timeout) : 0s));
    if (!changed) {
      const std::string who =
          late == nodes.end() ? "the head's node" : roster_.reports().name(static_cast<uint32_t>(late - nodes.begin()));
      throw ErrorException(make_error(ErrorCode::kTimeout, "{} did not join epoch {}", who, epoch.value()));
    }
  }
}

asio::awaitable<void> Coordinator::gather() {
  for (;;) {
    co_await roster_.wait_for_all(is_ready, "come, load, or end the last epoch");
    if (roster_.agreed() && stages_ != nullptr) break;
    co_await agree_on_pools();
  }
}

comm::RankEndpoints Coordinator::expert_endpoints(uint16_t own_port) const {
  std::vector<NodePart> parts;
  for (const Assignment& assignment : assignments_) parts.push_back(assignment.part());
  const Assignment& own = assignments_.front();
  comm::RankEndpoints endpoints;
  for (uint32_t stage = 0; stage < own.stage_count; ++stage) {
    for (uint32_t rank = 0; rank < own.stage.rank_count; ++rank) {
      const size_t node = node_of(parts, StageId(stage), rank);
      const Node& found = roster_.nodes()[node];
      comm::TcpEndpoint endpoint{.host = "", .port = node == 0 ? own_port : found.expert_port};
      if (found.connection) endpoint.host = found.connection->peer_host();
      endpoints.push_back(endpoint.for_others());
    }
  }
  return endpoints;
}

void Coordinator::share_experts(comm::ExpertEpoch epoch, comm::EpochExperts& exchange, std::string fingerprint) {
  set_fingerprint(std::move(fingerprint));
  experts_ = std::move(epoch);
  exchange_ = &exchange;
}

/// The other rings wait for the ranks of this one from now on: a node that has gone meanwhile, or is another process,
/// would keep them waiting.
void Coordinator::check_gathered() const {
  for (uint32_t rank = 1; rank < roster_.nodes().size(); ++rank) {
    if (is_ready(roster_.nodes()[rank])) continue;
    throw ErrorException(
        make_error(ErrorCode::kUnavailable, "{} has gone before the common epoch began", roster_.reports().name(rank)));
  }
  const comm::RankEndpoints& own = experts_.endpoints[assignments_.front().stage.expert_ring];
  if (roster_.agreed() && stages_ != nullptr && expert_endpoints(own.front().port) == own) return;
  throw_error(ErrorCode::kUnavailable, "a node has come anew before the common epoch began");
}

EpochLinksOptions Coordinator::own_links(RingEpoch epoch, async::TimePoint deadline,
                                         const std::vector<JoinedNode>& joined) const {
  return {.epoch = epoch,
          .node = 0,
          .nodes = joined,
          .assignment = assignments_.front(),
          .config = options_.config,
          .silence = options_.timing.silence_limit,
          .deadline = deadline,
          .channel_in = false,
          .channel_out = channels_[0],
          .transfer_timeout = options_.transfer_timeout,
          .experts = experts_,
          .exchange = exchange_};
}

asio::awaitable<sched::RingEnds> Coordinator::build(RingEpoch epoch) {
  if (exchange_ != nullptr) {
    co_await name_pages();
    check_gathered();  // nothing suspends from here until the requests are sent: a node may go at any suspension
  } else {
    co_await gather();
  }
  const async::TimePoint deadline = runtime_.now() + options_.build_timeout;
  roster_.forget_lost();
  check_rank_devices();
  channels_ = choose_channels();
  // Read here: a node may be gone before the tasks start.
  const std::vector<JoinedNode> nodes = joined_nodes();
  send_join_requests(epoch, nodes);
  EpochLinks links(runtime_, *ring_listener_, *stages_, own_links(epoch, deadline, nodes),
                   [this] { roster_.notify(); });
  OutputLink output;
  async::TaskGroup linking(runtime_);
  if (!hosts_last_leader()) {
    linking.spawn("accept the link from the last stage", accept_output_link(epoch, deadline, output));
  }
  links.open(linking);
  std::exception_ptr failure;
  try {
    co_await wait_until_joined(epoch, deadline, output, links);
  } catch (...) {
    failure = std::current_exception();
  }
  co_await links.end(linking);
  if (links.lost_channel() != StageId(0)) channel_selector_.give_up(links.lost_channel(), links.failure()->message);
  if (failure) std::rethrow_exception(failure);
  co_return start_own_ranks(std::move(output), links);
}

/// Starts the ranks of this node, and returns the head's ends of the ring.
sched::RingEnds Coordinator::start_own_ranks(OutputLink output, EpochLinks& links) {
  const Assignment& own = assignments_.front();
  const size_t capacity = own.stage.window + 1;
  comm::Link in = comm::make_in_process_link(runtime_, stages_->first_runtime(), capacity);
  sched::OuterLinks outer = links.take();
  outer.ranks.front().upstream = std::move(in.receiver);
  sched::RingEnds ends{.to_first_stage = std::move(in.sender), .from_last_stage = nullptr, .pages = pages_};
  if (hosts_last_leader()) {
    comm::Link out = comm::make_in_process_link(stages_->last_runtime(), runtime_, capacity);
    outer.ranks[own.part().index_of(StageId(own.stage_count - 1), 0)].downstream = std::move(out.sender);
    ends.from_last_stage = std::move(out.receiver);
  } else {
    ends.from_last_stage = std::move(**output);
  }
  stages_->start(std::move(outer));
  return ends;
}

asio::awaitable<void> Coordinator::tear_down(RingEpoch epoch, std::string reason) {
  for (const Node& node : roster_.nodes()) {
    if (node.joining == epoch) node.connection->send(Stop{epoch, reason});
  }
  experts_ = {};
  exchange_ = nullptr;
  if (stages_ != nullptr) {
    stages_->stop(reason);
    co_await stages_->join();
  }
  // The next build() waits for nodes that are lost or stop late.
}

}  // namespace millrace::cluster
