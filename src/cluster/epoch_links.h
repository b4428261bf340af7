#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "async/task_group.h"
#include "cluster/link_ends.h"
#include "cluster/messages.h"
#include "comm/collective/epoch_experts.h"
#include "comm/tcp_link.h"
#include "model/config.h"
#include "sched/stage/local_stages.h"

namespace millrace::cluster {

struct EpochLinksOptions {
  RingEpoch epoch;
  size_t node = 0;                ///< this one
  std::vector<JoinedNode> nodes;  ///< of the ring
  Assignment assignment;
  model::ModelConfig config;
  async::Duration silence{};  ///< TcpLinkOptions::silence
  async::TimePoint deadline;  ///< for all links to be open
  bool channel_in = false;    ///< as in JoinRing
  bool channel_out = false;
  std::chrono::milliseconds transfer_timeout{};  ///< of channels
  comm::ExpertEpoch experts;                     ///< as in JoinRing
  comm::EpochExperts* exchange = nullptr;        ///< of this node with other rings, where `experts` has an epoch
};

/// Opens what the ranks of one node share with other nodes in one epoch. These are links, device channels, collectives
/// of a stage whose ranks are on several nodes, and the exchange of experts with other rings. Owned by the Member or
/// the Coordinator for the time of joining, on its Runtime. `listener`, `stages` and the exchange outlive it.
class EpochLinks {
 public:
  /// `on_change` is called when something is open or has failed.
  EpochLinks(async::Runtime& runtime, comm::TcpListener& listener, sched::LocalStages& stages,
             EpochLinksOptions options, std::function<void()> on_change);

  /// Begins to open everything in tasks of `tasks`, which end before this is destroyed.
  void open(async::TaskGroup& tasks);
  /// Returns whether everything is open.
  [[nodiscard]] bool complete() const {
    return opened_ == ends_.size() + outer_.collectives.size() + (shares_experts() ? 1 : 0);
  }
  /// Ends what is not open so far, and returns when the tasks of open() have ended.
  [[nodiscard]] asio::awaitable<void> end(async::TaskGroup& tasks);
  /// Returns the first failure.
  [[nodiscard]] const std::optional<Error>& failure() const { return failure_; }
  /// Returns the stage to which a device channel could not be opened; 0: none.
  [[nodiscard]] StageId lost_channel() const { return lost_channel_; }
  /// Returns what has been opened, once all of it is.
  [[nodiscard]] sched::OuterLinks take();

 private:
  [[nodiscard]] const NodePart& part() const { return parts_[options_.node]; }
  [[nodiscard]] bool divides_stage() const { return part().rank_count < options_.assignment.stage.rank_count; }
  [[nodiscard]] bool shares_experts() const { return options_.experts.number != 0; }
  [[nodiscard]] comm::TcpEndpoint endpoint_of(size_t node) const;
  [[nodiscard]] comm::TcpLinkOptions socket_options() const;
  [[nodiscard]] comm::Link& other_rank(const LinkEnd& end);
  [[nodiscard]] asio::awaitable<void> accept(LinkEnd end);
  [[nodiscard]] asio::awaitable<void> connect(LinkEnd end);
  template <class End>
  [[nodiscard]] asio::awaitable<void> keep(LinkEnd end, Result<std::unique_ptr<End>> link, bool has_channel,
                                           std::unique_ptr<End>& (EpochLinks::*place)(const LinkEnd&));
  [[nodiscard]] std::unique_ptr<comm::LinkReceiver>& receiver_of(const LinkEnd& end);
  [[nodiscard]] std::unique_ptr<comm::LinkSender>& sender_of(const LinkEnd& end);
  [[nodiscard]] asio::awaitable<void> join_collective(size_t index);
  [[nodiscard]] asio::awaitable<Result<std::unique_ptr<tensor::Collective>>> join_hosts(size_t index);
  [[nodiscard]] asio::awaitable<Result<std::unique_ptr<tensor::Collective>>> join_devices(size_t index);
  [[nodiscard]] asio::awaitable<void> connect_experts();
  [[nodiscard]] tensor::RankPosition position(size_t index) const;
  void note_channel(const Error& failure, StageId to);
  void note(const Error& failure);
  void note_opened();

  async::Runtime& runtime_;
  comm::TcpListener& listener_;
  sched::LocalStages& stages_;
  const EpochLinksOptions options_;
  const std::function<void()> on_change_;
  std::vector<NodePart> parts_;  // by node
  std::vector<LinkEnd> ends_;
  sched::OuterLinks outer_;
  size_t opened_ = 0;
  std::optional<Error> failure_;
  StageId lost_channel_{0};
};

}  // namespace millrace::cluster
