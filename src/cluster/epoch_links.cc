#include "cluster/epoch_links.h"

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/this_coro.hpp>

#include "cluster/node_link.h"
#include "comm/collective/joined_device_collective.h"
#include "comm/collective/tcp_collective.h"
#include "tensor/backend.h"

namespace millrace::cluster {

EpochLinks::EpochLinks(async::Runtime& runtime, comm::TcpListener& listener, sched::LocalStages& stages,
                       EpochLinksOptions options, std::function<void()> on_change)
    : runtime_(runtime),
      listener_(listener),
      stages_(stages),
      options_(std::move(options)),
      on_change_(std::move(on_change)) {
  for (const JoinedNode& node : options_.nodes) parts_.push_back(node.part);
  ends_ = link_ends(parts_, options_.node, options_.assignment.stage.rank_count);
  outer_.ranks.resize(part().size());
  if (divides_stage()) outer_.collectives.resize(part().size());
}

void EpochLinks::open(async::TaskGroup& tasks) {
  for (const LinkEnd& end : ends_) {
    if (end.sends()) {
      tasks.spawn("connect a link", connect(end));
    } else {
      tasks.spawn("accept a link", accept(end));
    }
  }
  for (size_t i = 0; i < outer_.collectives.size(); ++i) tasks.spawn("join a collective", join_collective(i));
  if (shares_experts()) tasks.spawn("connect experts", connect_experts());
}

asio::awaitable<void> EpochLinks::end(async::TaskGroup& tasks) {
  if (shares_experts() && !complete()) {
    const auto ring = static_cast<int32_t>(options_.assignment.stage.expert_ring);
    options_.exchange->end(options_.experts.number, ring, failure_ ? failure_->message : "the epoch has ended");
  }
  tasks.cancel();
  co_await tasks.join();
}

sched::OuterLinks EpochLinks::take() {
  if (shares_experts() && complete()) {
    for (size_t i = 0; i < part().size(); ++i) {
      const auto stage = part().first_stage + static_cast<uint32_t>(i) / part().rank_count;
      const auto rank = part().first_rank + static_cast<uint32_t>(i) % part().rank_count;
      outer_.experts.push_back(options_.exchange->join(StageId(stage), rank, *stages_.backend(i)));
    }
  }
  return std::move(outer_);
}

/// Returns where a node listens for this one. Ranks of a divided stage that are both here exchange over TCP too.
comm::TcpEndpoint EpochLinks::endpoint_of(size_t node) const {
  if (node != options_.node) return {options_.nodes[node].host, options_.nodes[node].port};
  comm::TcpEndpoint own = listener_.endpoint();
  if (own.host == "0.0.0.0") own.host = "127.0.0.1";
  if (own.host == "::") own.host = "::1";
  return own;
}

comm::TcpLinkOptions EpochLinks::socket_options() const {
  return link_options(options_.assignment, options_.config, options_.silence);
}

asio::awaitable<void> EpochLinks::accept(LinkEnd end) {
  const auto hello = link_hello(options_.assignment, options_.config, options_.epoch, end.from, end.to);
  auto link = co_await listener_.accept_link(stages_.tcp_links(end.owner), hello, socket_options(), options_.deadline);
  const bool has_channel = options_.channel_in && end.use == LinkEnd::Use::kUpstream;
  co_await keep(end, std::move(link), has_channel, &EpochLinks::receiver_of);
}

asio::awaitable<void> EpochLinks::connect(LinkEnd end) {
  const auto hello = link_hello(options_.assignment, options_.config, options_.epoch, end.from, end.to);
  auto link = co_await comm::connect_link(runtime_, stages_.tcp_links(end.owner), endpoint_of(end.peer), hello,
                                          socket_options(), options_.deadline);
  const bool has_channel = options_.channel_out && end.use == LinkEnd::Use::kDownstream;
  co_await keep(end, std::move(link), has_channel, &EpochLinks::sender_of);
}

/// Adds the device's channel to a link, if it has one, and stores it for its owner.
template <class End>
asio::awaitable<void> EpochLinks::keep(LinkEnd end, Result<std::unique_ptr<End>> link, bool has_channel,
                                       std::unique_ptr<End>& (EpochLinks::*place)(const LinkEnd&)) {
  if (has_channel && !link.has_error()) {
    link = co_await stages_.add_channel(std::move(*link),
                                        channel_options(options_.epoch, end.from, end.to, options_.transfer_timeout));
    if (link.has_error()) note_channel(link.error(), end.to);
  }
  if (link.has_error()) co_return note(link.error());
  (this->*place)(end) = std::move(*link);
  note_opened();
}

std::unique_ptr<comm::LinkReceiver>& EpochLinks::receiver_of(const LinkEnd& end) {
  sched::StageLinks& owner = outer_.ranks[end.owner];
  switch (end.use) {
    case LinkEnd::Use::kUpstream: return owner.upstream;
    case LinkEnd::Use::kFromLeader: return owner.from_leader;
    default: return other_rank(end).receiver;
  }
}

std::unique_ptr<comm::LinkSender>& EpochLinks::sender_of(const LinkEnd& end) {
  sched::StageLinks& owner = outer_.ranks[end.owner];
  switch (end.use) {
    case LinkEnd::Use::kDownstream: return owner.downstream;
    case LinkEnd::Use::kToLeader: return owner.to_leader;
    default: return other_rank(end).sender;
  }
}

/// Returns a leader's links with a rank that is elsewhere.
comm::Link& EpochLinks::other_rank(const LinkEnd& end) {
  std::vector<comm::Link>& ranks = outer_.ranks[end.owner].ranks;
  ranks.resize(options_.assignment.stage.rank_count - 1);
  return ranks[end.other - 1];
}

/// Returns the position in its stage of a rank of this node.
tensor::RankPosition EpochLinks::position(size_t index) const {
  return {.rank = static_cast<int32_t>(part().first_rank + index),
          .size = static_cast<int32_t>(options_.assignment.stage.rank_count)};
}

asio::awaitable<void> EpochLinks::join_collective(size_t index) {
  Result<std::unique_ptr<tensor::Collective>> joined(nullptr);
  if (stages_.backend(index)->is_host()) {
    joined = co_await join_hosts(index);
  } else {
    joined = co_await join_devices(index);
  }
  if (joined.has_error()) co_return note(joined.error());
  outer_.collectives[index] = std::move(*joined);
  note_opened();
}

asio::awaitable<Result<std::unique_ptr<tensor::Collective>>> EpochLinks::join_hosts(size_t index) {
  const StageId stage(part().first_stage);
  comm::TcpCollectiveOptions collective{
      .position = position(index),
      .stage = stage,
      .facts = link_hello(options_.assignment, options_.config, options_.epoch, stage, stage),
      .endpoints = {},
      .sockets = socket_options(),
      .silence = std::chrono::duration_cast<std::chrono::milliseconds>(options_.silence),
      .reduce_dtype = options_.assignment.stage.reduce_dtype};
  for (uint32_t rank = 0; rank < options_.assignment.stage.rank_count; ++rank) {
    collective.endpoints.push_back(endpoint_of(node_of(parts_, stage, rank)));
  }
  return comm::connect_tcp_collective(runtime_, listener_, std::move(collective), *stages_.backend(index),
                                      options_.deadline);
}

asio::awaitable<Result<std::unique_ptr<tensor::Collective>>> EpochLinks::join_devices(size_t index) {
  const StageId stage(part().first_stage);
  comm::DeviceCollectiveOptions collective{
      .position = position(index),
      .stage = stage,
      .facts = link_hello(options_.assignment, options_.config, options_.epoch, stage, stage),
      .leader = endpoint_of(node_of(parts_, stage, 0)),
      .sockets = socket_options(),
      .max_bytes = stages_.exchange_bytes(),
      .open_timeout = open_timeout(options_.transfer_timeout)};
  return comm::join_device_collective(runtime_, listener_, std::move(collective), *stages_.backend(index),
                                      options_.deadline);
}

asio::awaitable<void> EpochLinks::connect_experts() {
  // It has tasks of its own to wait for, which end() ends by way of the exchange.
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  const comm::RankBlock here{.first_stage = static_cast<int32_t>(part().first_stage),
                             .stage_count = static_cast<int32_t>(part().stage_count),
                             .first_rank = static_cast<int32_t>(part().first_rank),
                             .rank_count = static_cast<int32_t>(part().rank_count)};
  const auto connected = co_await options_.exchange->connect(runtime_, options_.experts, here, options_.deadline);
  if (connected.has_error()) co_return note(connected.error());
  note_opened();
}

void EpochLinks::note_channel(const Error& failure, StageId to) {
  if (failure.code != ErrorCode::kAborted) lost_channel_ = to;
}

void EpochLinks::note(const Error& failure) {
  if (!failure_) failure_ = failure;
  on_change_();
}

void EpochLinks::note_opened() {
  ++opened_;
  on_change_();
}

}  // namespace millrace::cluster
