#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "app/cluster_options.h"
#include "app/engine_options.h"
#include "app/starting_engine.h"
#include "async/real_runtime.h"
#include "base/result.h"
#include "cluster/placement.h"
#include "cluster/remote/ring_messages.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "sched/head/model_info.h"

namespace millrace::cluster {
struct LoadedRing;
struct NodeInfo;
}  // namespace millrace::cluster

namespace millrace::sched {
class InProcessRingBuilder;
class RingBuilder;
class LocalStages;
class Ring;
struct RingConfig;
struct StageGraphStats;
}  // namespace millrace::sched

namespace millrace::app {

class ClusterHead;
class ExpertSharing;
class HeadPoolHost;
class NamingRingBuilder;
class NodeStages;
struct NodeStagesOptions;

/// The engine on the head's node: the head's thread, the stages of this node, and with several nodes the ClusterHead.
/// serve() builds one; start() blocks the thread that calls it. The destructor stops the ring and joins every thread.
class LocalEngine {
 public:
  /// Makes the engine of the model in `options.model_path`, which is not loaded yet. `vocab_size`: ids that the
  /// tokenizer knows. `sharing` outlives the engine; null: its ring has all experts of the model. Errors name the file
  /// or flag at fault.
  [[nodiscard]] static Result<std::unique_ptr<LocalEngine>> create(const EngineOptions& options,
                                                                   const ClusterOptions& cluster_options,
                                                                   size_t vocab_size, ExpertSharing* sharing = nullptr);
  ~LocalEngine();
  LocalEngine(const LocalEngine&) = delete;
  LocalEngine& operator=(const LocalEngine&) = delete;

  /// Loads the weights, waits for the other nodes and starts the ring. The engine is ready a moment later. Called once.
  /// Errors name the tensor or flag at fault; kAborted after interrupt().
  [[nodiscard]] Result<void> start();
  /// Loads the weights: the first of start()'s three parts, which several engines in one process call one by one. The
  /// layers are divided as in the `earlier` engines, and weights that they have loaded are shared where possible.
  [[nodiscard]] Result<void> load(std::span<const std::unique_ptr<LocalEngine>> earlier = {});
  /// Returns the sizes of the pools that the flags ask for, where `sharers` engines share each device.
  [[nodiscard]] Result<cache::PoolSizes> first_pool_sizes(uint32_t sharers);
  [[nodiscard]] Result<void> start_ring(cache::PoolSizes pages);
  /// Notes that the engine is destroyed soon: if its ring breaks before, with another, that is no fault.
  void expect_stop();
  /// Returns what must be equal for another ring to give the same outputs, once loaded, apart from the vocabulary.
  [[nodiscard]] cluster::remote::RingFacts facts() const;
  /// Returns what the KV pages of this node's stages follow from, once loaded; nothing without a page store.
  [[nodiscard]] std::optional<model::RingContents> contents() const;
  /// Sets what pages in the store are named by: the contents of all rings that share experts, which are in this
  /// process. Call it between load() and start_ring().
  void set_contents(std::span<const model::RingContents> rings);
  /// Returns the devices of this node's stages, once loaded.
  [[nodiscard]] std::vector<std::string> device_names() const;
  /// Ends loading, or a wait for other nodes. May be called from any thread.
  void interrupt();
  /// Returns the counts of both ends of every TCP link of the ring. Thread-safe.
  [[nodiscard]] std::vector<comm::LinkStats> link_stats() const;
  /// Returns the counts of the page stores of all stages; those of other nodes as last reported. Thread-safe.
  [[nodiscard]] std::vector<cache::StageStoreStats> store_stats() const;
  /// Returns how decode steps reached the devices of this node's stages: as graphs or launch by launch. Thread-safe.
  [[nodiscard]] std::vector<sched::StageGraphStats> graph_stats() const;
  /// Returns the number of refused connections to the control port; nothing without other nodes. Thread-safe.
  [[nodiscard]] std::optional<uint64_t> control_refusals() const;
  /// Returns the nodes of the ring by rank; none before they are known. Thread-safe.
  [[nodiscard]] std::vector<cluster::NodeInfo> nodes() const;
  /// Returns the engine, which is not ready, with a reason, until the ring runs.
  [[nodiscard]] sched::Engine& engine() { return engine_proxy_; }

 private:
  LocalEngine(const EngineOptions& options, const ClusterOptions& cluster_options, model::ModelConfig config,
              std::vector<cluster::NodePart> parts, size_t vocab_size, ExpertSharing* sharing);
  [[nodiscard]] Result<void> open_cluster();
  [[nodiscard]] Result<std::vector<model::LayerRange>> divide_layers(const NodeStagesOptions& node);
  [[nodiscard]] std::string expert_division() const;
  [[nodiscard]] const cluster::NodePart& own_part() const { return parts_.front(); }
  [[nodiscard]] sched::ModelInfo model_info() const;
  [[nodiscard]] Result<cache::PoolSizes> pool_sizes(uint64_t capacity, const cluster::LoadedRing& limits) const;
  [[nodiscard]] int32_t own_expert_ring() const { return static_cast<int32_t>(options_.stage.expert_ring); }
  [[nodiscard]] Result<sched::LocalStages*> make_stages_again(const sched::RingConfig& shape,
                                                              const std::string& fingerprint);
  void make_ring(const sched::HeadOptions& head, const sched::RingConfig& shape);
  void set_stages(const sched::LocalStages* stages);

  const EngineOptions options_;
  const ClusterOptions cluster_options_;
  const std::vector<cluster::NodePart> parts_;  // of the ring, by node
  model::ModelConfig config_;                   // whether its embedding is tied is known once the checkpoint is open
  const uint32_t sampling_vocab_;
  ExpertSharing* const expert_sharing_;
  StartingEngine engine_proxy_;
  mutable std::mutex interrupt_mutex_;
  std::atomic<bool> interrupted_ = false;                // set under interrupt_mutex_
  std::string compute_;                                  // of this node, once loaded; guarded by interrupt_mutex_
  const sched::LocalStages* stages_ = nullptr;           // of this node, once made; guarded by interrupt_mutex_
  std::shared_ptr<const model::Checkpoint> checkpoint_;  // of all engines that share weights
  std::vector<model::LayerRange> ranges_;                // of the ring's stages, once known
  std::unique_ptr<NodeStages> node_;
  std::string fingerprint_;  // names stored pages; empty: there is no store, or other processes name them too
  std::unique_ptr<HeadPoolHost> pool_host_;  // with several nodes
  async::IoThread head_thread_{"head"};
  std::stop_source interruption_;                              // ends the lookup of this node's own name
  std::unique_ptr<ClusterHead> cluster_;                       // null with one node; set under interrupt_mutex_
  std::unique_ptr<sched::InProcessRingBuilder> ring_builder_;  // null with several, and with the next
  std::unique_ptr<NamingRingBuilder> naming_builder_;          // where other processes name stored pages too
  std::unique_ptr<sched::RingBuilder> stepping_builder_;       // around the builder, with shared experts
  std::unique_ptr<sched::Ring> ring_;
};

}  // namespace millrace::app
