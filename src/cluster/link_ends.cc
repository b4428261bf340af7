#include "cluster/link_ends.h"

namespace millrace::cluster {
namespace {

using Use = LinkEnd::Use;

/// The view of one rank on the ring.
struct RankView {
  const std::vector<NodePart>& parts;
  size_t node;
  StageId stage;
  uint32_t rank;

  [[nodiscard]] StageId id() const { return comm::rank_id(stage, rank); }
  /// Returns an end of this rank's link with a rank of a stage, from it or to it.
  [[nodiscard]] LinkEnd end(Use use, StageId with_stage, uint32_t with_rank) const {
    LinkEnd end{.use = use,
                .owner = parts[node].index_of(stage, rank),
                .other = with_rank,
                .from = comm::rank_id(with_stage, with_rank),
                .to = id(),
                .peer = node_of(parts, with_stage, with_rank)};
    if (end.sends()) std::swap(end.from, end.to);
    return end;
  }
};

/// Adds the links with the stages before and after, or with the head.
void add_neighbours(const RankView& place, std::vector<LinkEnd>& ends) {
  if (place.stage.value() > 0) ends.push_back(place.end(Use::kUpstream, StageId(place.stage.value() - 1), place.rank));
  const bool last = place.stage.value() + 1 == place.parts.back().first_stage + place.parts.back().stage_count;
  if (!last) {
    ends.push_back(place.end(Use::kDownstream, StageId(place.stage.value() + 1), place.rank));
  } else if (place.rank == 0) {
    ends.push_back({.use = Use::kDownstream,
                    .owner = place.parts[place.node].index_of(place.stage, place.rank),
                    .other = 0,
                    .from = place.id(),
                    .to = comm::kHeadId,
                    .peer = 0});
  }
}

/// Adds the links between the leader and the other ranks of a stage.
void add_star(const RankView& place, uint32_t rank_count, std::vector<LinkEnd>& ends) {
  if (place.rank > 0) {
    ends.push_back(place.end(Use::kFromLeader, place.stage, 0));
    ends.push_back(place.end(Use::kToLeader, place.stage, 0));
    return;
  }
  for (uint32_t other = 1; other < rank_count; ++other) {
    ends.push_back(place.end(Use::kPlansToRank, place.stage, other));
    ends.push_back(place.end(Use::kResultsOfRank, place.stage, other));
  }
}

}  // namespace

std::vector<LinkEnd> link_ends(const std::vector<NodePart>& parts, size_t node, uint32_t rank_count) {
  const NodePart& part = parts[node];
  std::vector<LinkEnd> ends;
  for (uint32_t stage = 0; stage < part.stage_count; ++stage) {
    for (uint32_t rank = 0; rank < part.rank_count; ++rank) {
      const RankView place{parts, node, StageId(part.first_stage + stage), part.first_rank + rank};
      add_neighbours(place, ends);
      add_star(place, rank_count, ends);
    }
  }
  std::erase_if(ends, [node](const LinkEnd& end) { return end.peer == node; });
  return ends;
}

}  // namespace millrace::cluster
