#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace millrace::cluster {

/// The part of a ring that one node hosts: some stages with all of their ranks, or some ranks of one stage.
struct NodePart {
  uint32_t first_stage = 0;
  uint32_t stage_count = 1;
  uint32_t first_rank = 0;
  uint32_t rank_count = 1;  ///< of each of its stages

  [[nodiscard]] size_t size() const { return size_t{stage_count} * rank_count; }
  [[nodiscard]] bool hosts(StageId stage, uint32_t rank) const {
    return stage.value() - first_stage < stage_count && rank - first_rank < rank_count;
  }
  /// Returns the position of a rank that it hosts among its ranks, stage by stage.
  [[nodiscard]] size_t index_of(StageId stage, uint32_t rank) const {
    return size_t{stage.value() - first_stage} * rank_count + rank - first_rank;
  }
  friend bool operator==(const NodePart&, const NodePart&) = default;
};

/// Places the ranks of all stages on nodes, in the order of the nodes. Up to one node per stage, a node gets whole
/// stages, evenly with the remainder on later nodes. With more nodes, the ranks of each stage are divided evenly over
/// equally many nodes. Errors: a count of nodes that is neither, with those that would be.
[[nodiscard]] Result<std::vector<NodePart>> place_ranks(uint32_t stage_count, uint32_t rank_count, uint32_t node_count);

/// Returns the node that hosts a rank.
[[nodiscard]] size_t node_of(const std::vector<NodePart>& parts, StageId stage, uint32_t rank);

}  // namespace millrace::cluster
