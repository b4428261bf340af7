#pragma once

#include <cstdint>
#include <span>

#include "app/engine_options.h"
#include "app/node_memory.h"
#include "base/result.h"
#include "cache/page_pool.h"
#include "cluster/coordinator.h"
#include "cluster/placement.h"
#include "model/config.h"
#include "model/layer_range.h"

namespace millrace::app {

/// Returns how many layers the largest node of a ring has per layer of the first node, at least 1. A layer counts once
/// for each of its ranks there. `ranges`: the layers of the ring's stages; `parts`: its nodes.
[[nodiscard]] double largest_node_ratio(std::span<const cluster::NodePart> parts,
                                        std::span<const model::LayerRange> ranges);

/// The memory that the page pools of a ring are made in.
struct RingMemory {
  const NodeMemory& node;             ///< of the head's node
  uint64_t page_capacity = 0;         ///< pages that all nodes have room for, apart from --max-total-tokens
  const cluster::LoadedRing& limits;  ///< what the other nodes have room for at most
  double largest_node_ratio = 1;      ///< the node with the most layers limits the pages in --hicache-size
};

/// Returns the pools that the flags ask for, as far as the memory holds them. The log warns of those that are smaller.
/// What this node lacks for --max-total-tokens at the start is an error of NodeStages::make_stages(). Error:
/// kInvalidArgument when no page has room.
[[nodiscard]] Result<cache::PoolSizes> choose_pool_sizes(const EngineOptions& options, const model::ModelConfig& config,
                                                         const RingMemory& memory);

}  // namespace millrace::app
