#pragma once

#include <vector>

#include "app/node_options.h"
#include "base/result.h"
#include "model/config.h"

namespace millrace::app {

/// One rank among those of this node's stages, over all rings, which share its threads and devices.
struct NodeRank {
  int32_t stage = 0;        ///< index among this node's stages
  int32_t stage_count = 1;  ///< of this node
  int32_t rank = 0;         ///< index among the ranks that the stage has on this node
  int32_t rank_count = 1;   ///< of each stage, on this node
  int32_t ring = 0;         ///< index among the rings of this process
  int32_t ring_count = 1;

  [[nodiscard]] int32_t index() const { return (ring * stage_count + stage) * rank_count + rank; }
  [[nodiscard]] int32_t count() const { return ring_count * stage_count * rank_count; }
};

/// Returns the threads that each of `rank_count` ranks of this node computes with. `threads`: over all of them; 0: one
/// per CPU.
[[nodiscard]] int32_t threads_per_rank(int32_t threads, int32_t rank_count);

/// The processors of a rank.
struct RankProcessors {
  std::vector<int> near;  ///< those of the rank's NUMA nodes, for all of its threads; empty: any
  std::vector<int> pin;   ///< with --pin-threads: one for each thread that computes
};

/// Divides the processors over the ranks of this node. Where there are several NUMA nodes and ranks, a rank of a stage
/// gets whole NUMA nodes, or shares one. Errors: --pin-threads.
[[nodiscard]] Result<RankProcessors> rank_processors(const NodeOptions& node, const NodeRank& rank,
                                                     const std::vector<std::vector<int>>& numa_nodes);

/// Returns the indices of the NUMA nodes on which all threads of a rank run; none: they may run on any.
[[nodiscard]] std::vector<size_t> nodes_of(const RankProcessors& processors,
                                           const std::vector<std::vector<int>>& numa_nodes);

/// Returns what `--tp-size auto` means on a machine with that many NUMA nodes: one rank for each, as far as the model
/// can be divided.
[[nodiscard]] int32_t ranks_for(const model::ModelConfig& config, size_t numa_node_count);

}  // namespace millrace::app
