#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cluster/channel_choice.h"
#include "cluster/control_connection.h"
#include "cluster/messages.h"
#include "cluster/node_reports.h"
#include "comm/tcp_link.h"
#include "model/config.h"
#include "sched/ring.h"

namespace millrace::cluster {

struct CoordinatorOptions {
  comm::TcpEndpoint address;              ///< where the other nodes come to (--dist-init-addr)
  std::vector<Assignment> assignments;    ///< per node; the first is the coordinator's own
  model::ModelConfig config;
  ControlTiming timing;
  async::Duration form_timeout = std::chrono::seconds(5);
  bool require_channels = false;  ///< form no ring whose activations between devices go through the hosts
};

/// Brings the nodes of a ring together, on the node of the head: hears their hellos, tells each what to load, and forms
/// generation after generation with those that are there. Start order does not matter; what is missing is named in the
/// log while waiting. Lives on the head's Runtime.
class Coordinator final : public sched::RingFormer {
 public:
  Coordinator(async::Runtime& runtime, CoordinatorOptions options);
  ~Coordinator() override;

  /// Listens. Errors: the address cannot be bound.
  [[nodiscard]] Result<void> open();
  /// On the Runtime: serves nodes until interrupt().
  [[nodiscard]] asio::awaitable<void> serve();
  struct LoadedRing {
    uint64_t page_capacity = 0;  ///< pages that the smallest of the other nodes holds
    std::string fingerprint;     ///< with a store: of all stages
  };
  /// Returns when every node has loaded its stages. `compute` and `stages`: of this node, as in Loaded; one that
  /// computes otherwise is named in the log. Throws when interrupted.
  [[nodiscard]] asio::awaitable<LoadedRing> all_loaded(std::string compute, std::vector<std::string> stages);
  /// Before the first form(): the stages of this node, which stay the caller's, and the size of the pools.
  void set_local(sched::LocalStages& stages, PoolSizes pages);
  /// Called when a node that takes part is lost, with what happened.
  void on_lost(std::function<void(const std::string& reason)> callback) { on_lost_ = std::move(callback); }
  /// Called with "forming: waiting for node 1 of 2 (stages 1 to 1)" whenever that has changed; empty: for nobody.
  void on_waiting(std::function<void(const std::string& what)> callback) { on_waiting_ = std::move(callback); }

  /// From any thread: both ends of every TCP link of the ring, those of other nodes as they reported them last.
  [[nodiscard]] std::vector<comm::LinkStats> link_stats() const;
  /// From any thread: of the stages of other nodes, as those reported them last.
  [[nodiscard]] std::vector<cache::StageStoreStats> store_stats() const { return reports_.stores(); }
  /// From any thread: by rank.
  [[nodiscard]] std::vector<NodeInfo> nodes() const { return reports_.nodes(); }

  [[nodiscard]] asio::awaitable<sched::RingEnds> form(Generation generation) override;
  [[nodiscard]] asio::awaitable<void> dissolve(Generation generation, std::string reason) override;
  void interrupt() override;

 private:
  struct Node {
    std::shared_ptr<ControlConnection> connection;  // null: not there
    uint16_t ring_port = 0;
    std::optional<uint64_t> page_capacity;          // set: loaded
    tensor::ChannelSupport first_channels;          // as Loaded says
    tensor::ChannelSupport last_channels;
    std::vector<std::string> stages;                // as Loaded says
    Generation joined{0};                           // asked to join this generation; 0: none
    bool formed = false;
  };
  /// The links of one generation that end here; set when they stand or have failed.
  struct Links {
    std::optional<Result<std::unique_ptr<comm::LinkReceiver>>> receiver;
    std::optional<Result<std::unique_ptr<comm::LinkSender>>> sender;
  };

  [[nodiscard]] asio::awaitable<void> accept_nodes();
  [[nodiscard]] asio::awaitable<void> serve_node(std::shared_ptr<ControlConnection> connection);
  [[nodiscard]] asio::awaitable<void> listen_to(uint32_t rank, std::shared_ptr<ControlConnection> connection);
  [[nodiscard]] std::string refusal(const Hello& hello) const;
  void handle(uint32_t rank, const Message& message);
  void lose(uint32_t rank, const std::string& reason);
  [[nodiscard]] asio::awaitable<void> until_all(bool (*ready)(const Node&), const char* what);
  [[nodiscard]] asio::awaitable<void> accept_output_link(Generation generation, async::TimePoint deadline,
                                                         Links& links);
  [[nodiscard]] asio::awaitable<void> connect_next_node(Generation generation, async::TimePoint deadline,
                                                        Links& links);
  [[nodiscard]] asio::awaitable<void> until_joined(Generation generation, async::TimePoint deadline,
                                                   const Links& links);
  void send_forms(Generation generation);
  /// Per link between nodes, by the rank of its sender: whether a channel takes the activations.
  [[nodiscard]] std::vector<bool> choose_channels();
  [[nodiscard]] StageId last_local_stage() const;

  async::Runtime& runtime_;
  const CoordinatorOptions options_;
  std::unique_ptr<asio::ip::tcp::acceptor> acceptor_;
  std::unique_ptr<comm::TcpListener> ring_listener_;
  comm::TcpLinkGroup head_links_;                       // the link from the last stage ends here
  // The link to the next node begins here; made under stats_mutex_.
  std::unique_ptr<comm::TcpLinkGroup> stage_links_;
  async::TaskGroup tasks_;
  async::WaitList changed_;
  std::vector<Node> nodes_;  // by rank; of the first, what its last stage offers
  sched::LocalStages* stages_ = nullptr;
  PoolSizes pages_;
  std::string fingerprint_;                          // of the ring, once all have loaded; empty: there is no store
  std::vector<std::vector<std::string>> stages_of_;  // by rank: what it was made from
  std::function<void(const std::string&)> on_lost_;
  std::function<void(const std::string&)> on_waiting_;
  std::vector<bool> channels_;  // of the newest generation, by the rank of the sender
  ChannelChoice channel_choice_;
  std::string lost_;                                    // a node of the newest generation that is lost, and why
  bool interrupted_ = false;
  mutable std::mutex stats_mutex_;
  NodeReports reports_;
};

}  // namespace millrace::cluster
