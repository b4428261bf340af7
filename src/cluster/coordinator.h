#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "cluster/channel_selector.h"
#include "cluster/node_roster.h"
#include "sched/ring/ring_builder.h"

namespace millrace::cluster {

struct CoordinatorOptions {
  comm::TcpEndpoint address;            ///< where the other nodes come to (--dist-init-addr)
  std::vector<Assignment> assignments;  ///< per node, their layers open but in number; the first is its own
  model::ModelConfig config;
  ControlTiming timing;
  async::Duration build_timeout = std::chrono::seconds(5);
  bool require_channels = false;  ///< build no ring whose activations between devices go through the hosts
  std::chrono::milliseconds transfer_timeout = std::chrono::seconds(60);  ///< of channels
};

/// Brings the nodes of a ring together, on the node of the head: forms epoch after epoch with those that are
/// there and have loaded what they were told to. Start order does not matter; what is missing is named in the log while
/// waiting. Lives on the head's Runtime.
class Coordinator final : public sched::RingBuilder {
 public:
  Coordinator(async::Runtime& runtime, CoordinatorOptions options);
  ~Coordinator() override;

  /// Listens, as listen_as_head.
  [[nodiscard]] Result<void> open(const std::stop_token& stop = {});
  /// On the Runtime: serves nodes until interrupt(). They hear what to load once the layers are divided.
  [[nodiscard]] asio::awaitable<void> serve();
  /// On the Runtime, once: the layers of every stage of the ring, in order.
  void set_layers(const std::vector<model::LayerRange>& layers);
  struct LoadedRing {
    uint64_t page_capacity = 0;  ///< pages that the smallest of the other nodes holds
    std::string fingerprint;     ///< with a store: of all stages
  };
  /// Returns when every node has loaded its stages. `compute` and `stages`: of this node, as in Loaded; one that
  /// computes otherwise is named in the log. Throws when interrupted.
  [[nodiscard]] asio::awaitable<LoadedRing> wait_until_loaded(std::string compute, std::vector<std::string> stages);
  /// Before the first build(): the stages of this node, which stay the caller's, and the size of the pools.
  void set_local(sched::LocalStages& stages, PoolSizes pages);
  /// Called when a node that takes part is lost, with what happened.
  void on_lost(std::function<void(const std::string& reason)> callback) { roster_.on_lost(std::move(callback)); }
  /// As NodeRoster::on_waiting.
  void on_waiting(std::function<void(const std::string& what)> callback) { roster_.on_waiting(std::move(callback)); }

  /// From any thread: both ends of every TCP link of the ring, those of other nodes as they reported them last.
  [[nodiscard]] std::vector<comm::LinkStats> link_stats() const;
  /// From any thread: of the stages of other nodes, as those reported them last.
  [[nodiscard]] std::vector<cache::StageStoreStats> store_stats() const { return roster_.reports().stores(); }
  /// From any thread: connections to the control port that were refused or turned away.
  [[nodiscard]] uint64_t refusals() const { return roster_.reports().refusals(); }
  /// From any thread: by rank.
  [[nodiscard]] std::vector<NodeInfo> nodes() const { return roster_.reports().nodes(); }

  [[nodiscard]] asio::awaitable<sched::RingEnds> build(RingEpoch epoch) override;
  [[nodiscard]] asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) override;
  void interrupt() override { roster_.interrupt(); }

 private:
  using Node = NodeRoster::Node;
  /// The links of one epoch that end here; set when they stand or have failed.
  struct Links {
    std::optional<Result<std::unique_ptr<comm::LinkReceiver>>> receiver;
    std::optional<Result<std::unique_ptr<comm::LinkSender>>> sender;
  };

  [[nodiscard]] asio::awaitable<void> accept_output_link(RingEpoch epoch, async::TimePoint deadline, Links& links);
  [[nodiscard]] asio::awaitable<void> connect_next_node(RingEpoch epoch, comm::TcpEndpoint next,
                                                        async::TimePoint deadline, Links& links);
  [[nodiscard]] asio::awaitable<void> wait_until_joined(RingEpoch epoch, async::TimePoint deadline, const Links& links);
  void send_join_requests(RingEpoch epoch);
  /// Per link between nodes, by the rank of its sender: whether a channel takes the activations.
  [[nodiscard]] std::vector<bool> choose_channels();
  void forget_channels(uint32_t rank);
  [[nodiscard]] StageId last_local_stage() const;

  async::Runtime& runtime_;
  const CoordinatorOptions options_;
  std::vector<Assignment> assignments_;  // with their layers once these are divided
  NodeRoster roster_;
  std::unique_ptr<comm::TcpListener> ring_listener_;
  comm::TcpLinkGroup head_links_;         // the link from the last stage ends here
  sched::LocalStages* stages_ = nullptr;  // set under stats_mutex_
  PoolSizes pages_;
  std::string fingerprint_;     // of the ring, once all have loaded; empty: there is no store
  std::vector<bool> channels_;  // of the newest epoch, by the rank of the sender
  ChannelSelector channel_selector_;
  mutable std::mutex stats_mutex_;
};

}  // namespace millrace::cluster
