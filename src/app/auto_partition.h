#pragma once

#include "app/node_stages.h"
#include "model/layer_range.h"

namespace millrace::app {

/// What `--pp-layer-partition auto` divides the layers for.
struct AutoDivision {
  model::LayerPartition::Load load = model::LayerPartition::Load::kMixed;
  int32_t stage_count = 1;       ///< of the ring
  int32_t node_stage_count = 1;  ///< of this node
  int32_t node_rank_count = 1;   ///< of each stage, on this node
};

/// Divides the layers as `--pp-layer-partition auto` does. It times the parts of the model on a backend like that of
/// this node's stages. It minimizes the time of the slowest stage under a load. Of near ties it takes the more even
/// one. The spans of `node` are not read. The log says what was chosen and why. Errors name the tensor or flag;
/// kAborted when `node` was interrupted.
[[nodiscard]] Result<std::vector<model::LayerRange>> auto_partition(const model::Checkpoint& checkpoint,
                                                                    const model::ModelConfig& config,
                                                                    const NodeStagesOptions& node,
                                                                    const AutoDivision& division);

}  // namespace millrace::app
