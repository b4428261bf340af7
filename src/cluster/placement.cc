#include "cluster/placement.h"

#include <algorithm>
#include <fmt/ranges.h>

#include "base/check.h"
#include "model/layer_range.h"

namespace millrace::cluster {

Result<std::vector<NodePart>> place_ranks(uint32_t stage_count, uint32_t rank_count, uint32_t node_count) {
  std::vector<NodePart> parts;
  if (node_count <= stage_count) {
    const auto nodes = model::divide_layers(static_cast<int32_t>(stage_count), static_cast<int32_t>(node_count));
    if (nodes.has_error()) return nodes.error();
    for (const model::LayerRange& stages : *nodes) {
      parts.push_back({.first_stage = static_cast<uint32_t>(stages.begin),
                       .stage_count = static_cast<uint32_t>(stages.size()),
                       .first_rank = 0,
                       .rank_count = rank_count});
    }
    return parts;
  }
  const uint32_t nodes_per_stage = node_count / stage_count;
  if (node_count % stage_count != 0 || nodes_per_stage > rank_count || rank_count % nodes_per_stage != 0) {
    std::vector<uint32_t> working;
    for (uint32_t nodes = 1; nodes <= rank_count; nodes *= 2) working.push_back(nodes * stage_count);
    return make_error(ErrorCode::kInvalidArgument,
                      "--nnodes {} is more than --pp-size {}: a node hosts whole stages, or an equal part of the "
                      "--tp-size {} ranks of one; wanted at most {}, or one of {}",
                      node_count, stage_count, rank_count, stage_count, fmt::join(working, ", "));
  }
  const uint32_t width = rank_count / nodes_per_stage;
  for (uint32_t node = 0; node < node_count; ++node) {
    parts.push_back({.first_stage = node / nodes_per_stage,
                     .stage_count = 1,
                     .first_rank = node % nodes_per_stage * width,
                     .rank_count = width});
  }
  return parts;
}

size_t node_of(const std::vector<NodePart>& parts, StageId stage, uint32_t rank) {
  const auto found = std::ranges::find_if(parts, [&](const NodePart& part) { return part.hosts(stage, rank); });
  CHECK(found != parts.end(), "no node has rank {} of stage {}", rank, stage.value());
  return static_cast<size_t>(found - parts.begin());
}

}  // namespace millrace::cluster
