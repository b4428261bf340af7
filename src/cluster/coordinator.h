#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "cluster/channel_selector.h"
#include "cluster/epoch_links.h"
#include "cluster/loader_thread.h"
#include "cluster/node_roster.h"
#include "cluster/stage_host.h"
#include "sched/ring/ring_builder.h"
#include "sched/stage/local_stages.h"

namespace millrace::cluster {

/// What all nodes of a ring, or all but the head's, have in common once they have loaded their stages.
struct LoadedRing {
  uint64_t page_capacity = UINT64_MAX;       ///< of the node with the fewest pages
  uint64_t host_page_capacity = UINT64_MAX;  ///< of the node with the least room for host pages
  uint32_t sequence_capacity = INT32_MAX;    ///< of the node with the least room for windows and states
  std::string fingerprint;  ///< names stored pages; empty: there is no store, or rings that share experts name them
};

struct CoordinatorOptions {
  comm::TcpEndpoint address;            ///< that the other nodes connect to (--dist-init-addr)
  std::vector<Assignment> assignments;  ///< per node, with open layer bounds; the first is its own
  model::ModelConfig config;
  /// Returns the pools for a ring whose nodes have measured their memory again, or why there are none.
  std::function<Result<cache::PoolSizes>(const LoadedRing&)> pool_sizes;
  ControlTiming timing;
  async::Duration build_timeout = std::chrono::seconds(5);
  bool require_channels = false;  ///< build no ring whose activations between devices go through the hosts
  std::chrono::milliseconds transfer_timeout = std::chrono::seconds(60);  ///< of channels
};

/// The ring builder for several nodes, on the head's node: it builds each epoch from the nodes that are connected and
/// have loaded their assignments. Nodes start in any order, and the log names the missing ones. A ring of the same
/// processes keeps its page pools. If one has come anew, all nodes free theirs and measure their memory, and the pools
/// are made again. Owned by the application, on the head's Runtime.
class Coordinator final : public sched::RingBuilder {
 public:
  Coordinator(async::Runtime& runtime, CoordinatorOptions options);
  ~Coordinator() override;

  /// Listens at the address, with the retries and errors of listen_as_head.
  [[nodiscard]] Result<void> open(const std::stop_token& stop = {});
  /// Serves nodes until interrupt(), on the Runtime. They get their assignments once the layers are divided.
  [[nodiscard]] asio::awaitable<void> serve();
  /// Sets the layers of every stage of the ring, in order. Called once, on the Runtime.
  void set_layers(const std::vector<model::LayerRange>& layers);
  /// Returns when every node has loaded its stages, with the capacities of all but this one. `compute` and `contents`
  /// are those of this node, as in Loaded. A node that computes in another way is named in the log. Throws when
  /// interrupted.
  [[nodiscard]] asio::awaitable<LoadedRing> wait_until_loaded(std::string compute, model::PageContents contents);
  /// Sets the stages of this node, which `local` has made and makes again, and the sizes of the pools, before the first
  /// build(). `local` outlives this.
  void set_local(PoolHost& local, sched::LocalStages& stages, cache::PoolSizes pages);
  /// Sets the callback that gets the reason when a participating node is lost.
  void on_lost(std::function<void(const std::string& reason)> callback) { roster_.on_lost(std::move(callback)); }
  /// Sets the callback of NodeRoster::on_quiet.
  void on_quiet(std::function<void(const std::string& what)> callback) { roster_.on_quiet(std::move(callback)); }
  /// Sets the callback of NodeRoster::on_waiting.
  void on_waiting(std::function<void(const std::string& what)> callback) { roster_.on_waiting(std::move(callback)); }

  /// Returns the counters of both ends of every TCP link of the ring, those of other nodes as reported last. From any
  /// thread.
  [[nodiscard]] std::vector<comm::LinkStats> link_stats() const;
  /// Returns the page store counters of the other nodes' stages, as reported last. From any thread.
  [[nodiscard]] std::vector<cache::StageStoreStats> store_stats() const { return roster_.reports().stores(); }
  /// Returns how many connections to the control port were refused or turned away. From any thread.
  [[nodiscard]] uint64_t refusals() const { return roster_.reports().refusals(); }
  /// Returns the nodes by rank, from any thread.
  [[nodiscard]] std::vector<NodeInfo> nodes() const { return roster_.reports().nodes(); }

  /// Waits until every node is there and has loaded, and agrees with them on the pools: build() does not wait then.
  /// Throws when interrupted.
  [[nodiscard]] asio::awaitable<void> gather();
  /// Returns where other rings reach the ranks of all nodes, after gather(); those of this node at `own_port`.
  [[nodiscard]] comm::RankEndpoints expert_endpoints(uint16_t own_port) const;
  /// Returns what stored pages of the ring follow from, after gather(); nothing without a page store.
  [[nodiscard]] const std::optional<model::RingContents>& contents() const { return contents_; }
  /// Lets the next build() connect all ranks with those of other rings in a common epoch, which begins once gather() is
  /// over. `exchange` is that of this node, and outlives the epoch. `fingerprint` names stored pages in that epoch.
  void share_experts(comm::ExpertEpoch epoch, comm::EpochExperts& exchange, std::string fingerprint);

  [[nodiscard]] asio::awaitable<sched::RingEnds> build(RingEpoch epoch) override;
  [[nodiscard]] asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) override;
  void interrupt() override { roster_.interrupt(); }

 private:
  using Node = NodeRoster::Node;
  /// The link from the last stage to the head, set when it is open or has failed.
  using OutputLink = std::optional<Result<std::unique_ptr<comm::LinkReceiver>>>;

  [[nodiscard]] asio::awaitable<void> accept_output_link(RingEpoch epoch, async::TimePoint deadline, OutputLink& link);
  [[nodiscard]] asio::awaitable<void> wait_until_joined(RingEpoch epoch, async::TimePoint deadline,
                                                        const OutputLink& output, const EpochLinks& links);
  [[nodiscard]] std::vector<JoinedNode> joined_nodes();
  void send_join_requests(RingEpoch epoch, const std::vector<JoinedNode>& joined);
  [[nodiscard]] EpochLinksOptions own_links(RingEpoch epoch, async::TimePoint deadline,
                                            const std::vector<JoinedNode>& joined) const;
  /// Throws ErrorException (kUnavailable) if the nodes are not those that gather() has found.
  void check_gathered() const;
  [[nodiscard]] sched::RingEnds start_own_ranks(OutputLink output, EpochLinks& links);
  [[nodiscard]] asio::awaitable<void> agree_on_pools();
  [[nodiscard]] asio::awaitable<void> make_stages();
  [[nodiscard]] asio::awaitable<void> name_pages();
  [[nodiscard]] LoadedRing summarize(model::PageContents contents);
  void set_fingerprint(std::string fingerprint);
  void set_stages(sched::LocalStages* stages);
  /// Returns for each link between nodes, by the rank of its sender, whether a channel takes the activations.
  [[nodiscard]] std::vector<bool> choose_channels();
  void forget_channels(uint32_t rank);
  /// Throws ErrorException (kUnavailable) where nodes that share a stage have devices that cannot exchange.
  void check_rank_devices();
  /// Returns whether something in an epoch is opened by devices, which takes longer than a TCP link.
  [[nodiscard]] bool opens_on_devices();
  /// Returns whether the leader of the last stage is here.
  [[nodiscard]] bool hosts_last_leader() const;

  async::Runtime& runtime_;
  const CoordinatorOptions options_;
  std::vector<Assignment> assignments_;  // with layers once these are divided
  NodeRoster roster_;
  std::unique_ptr<comm::TcpListener> ring_listener_;
  comm::TcpLinkGroup head_links_;  // the link from the last stage ends here
  LoaderThread loader_;
  PoolHost* local_ = nullptr;
  sched::LocalStages* stages_ = nullptr;  // set under stats_mutex_; null while local_ makes them
  cache::PoolSizes pages_;
  std::optional<model::RingContents> contents_;  // of the ring, once all have loaded; empty: there is no store
  std::string fingerprint_;        // that names stored pages; empty: there is no store, or no common epoch so far
  std::string local_fingerprint_;  // with which stages_ have been made
  std::vector<bool> channels_;     // of the newest epoch, by the rank of the sender
  comm::ExpertEpoch experts_;      // that the next build() or the epoch under way takes part in
  comm::EpochExperts* exchange_ = nullptr;  // of experts_
  ChannelSelector channel_selector_;
  mutable std::mutex stats_mutex_;
};

}  // namespace millrace::cluster
