#pragma once

#include <vector>

#include "cluster/placement.h"
#include "sched/stage/stage_links.h"

namespace millrace::cluster {

/// One end of a link between ranks on different nodes.
struct LinkEnd {
  /// The member of StageLinks that it becomes.
  enum class Use : uint8_t { kUpstream, kDownstream, kFromLeader, kToLeader, kPlansToRank, kResultsOfRank };
  Use use = Use::kUpstream;
  size_t owner = 0;    ///< the rank that uses it, by its position among the node's
  uint32_t other = 0;  ///< with kPlansToRank and kResultsOfRank: the number of the rank at the other end
  StageId from;        ///< comm::rank_id of the ends; or kHeadId
  StageId to;
  size_t peer = 0;  ///< the node of the other end

  [[nodiscard]] bool sends() const {
    return use == Use::kDownstream || use == Use::kToLeader || use == Use::kPlansToRank;
  }
};

/// Returns the ends that node `node` opens in each epoch, in a ring whose stages have `rank_count` ranks. Links of the
/// head with ranks of its own node are not among them.
[[nodiscard]] std::vector<LinkEnd> link_ends(const std::vector<NodePart>& parts, size_t node, uint32_t rank_count);

}  // namespace millrace::cluster
