#pragma once

#include <functional>
#include <future>
#include <stop_token>
#include <string>
#include <vector>

#include "app/cluster_options.h"
#include "app/engine_options.h"
#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/result.h"
#include "cluster/coordinator.h"

namespace millrace::app {

/// The engine's view of the other nodes, on the head's node. It wraps the coordinator, which runs on the head's thread,
/// in calls that block the loading thread. Owned by LocalEngine; destroyed after the head's thread has ended.
class ClusterHead {
 public:
  /// Decides the sizes of a ring's pools, as CoordinatorOptions::pool_sizes.
  using PoolSizer = std::function<Result<cache::PoolSizes>(const cluster::LoadedRing&)>;

  ClusterHead(async::IoThread& head_thread, const EngineOptions& options, const ClusterOptions& cluster_options,
              const model::ModelConfig& config, uint32_t sampling_vocab, PoolSizer pool_sizes);

  /// Listens for the other nodes. Errors name the flag; kAborted: `stop` was requested.
  [[nodiscard]] Result<void> open(const std::stop_token& stop);
  /// Serves the other nodes from now on, until interrupt().
  void serve();
  /// Ends serve(), and a wait for other nodes. May be called from any thread.
  void interrupt();
  /// Assigns the layers of every stage of the ring, in order.
  void send_layers(const std::vector<model::LayerRange>& ranges);
  /// Blocks until every node has loaded its stages. `compute` and `contents` are those of this node's NodeStages.
  [[nodiscard]] Result<cluster::LoadedRing> wait_until_loaded(std::string compute, model::PageContents contents);
  [[nodiscard]] cluster::Coordinator& coordinator() { return coordinator_; }

 private:
  [[nodiscard]] asio::awaitable<void> await_nodes(std::string compute, model::PageContents contents,
                                                  std::promise<Result<cluster::LoadedRing>>& loaded);

  async::IoThread& head_thread_;
  async::TaskGroup tasks_;
  cluster::Coordinator coordinator_;
};

}  // namespace millrace::app
