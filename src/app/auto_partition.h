#pragma once

#include "app/node_stages.h"
#include "model/layer_range.h"

namespace millrace::app {

/// Divides the layers as `--pp-layer-partition auto` does: it times the parts of the model on a backend like that of
/// this node's stages and minimizes the time of the slowest stage. Of near ties it takes the more even one. `node`,
/// whose spans are not read, hosts `node_stage_count` of `stage_count` stages. The log says what was chosen and why.
/// Errors name the tensor or flag; kAborted when `node` was interrupted.
[[nodiscard]] Result<std::vector<model::LayerRange>> auto_partition(const model::Checkpoint& checkpoint,
                                                                    const model::ModelConfig& config,
                                                                    const NodeStagesOptions& node,
                                                                    int32_t node_stage_count, int32_t stage_count);

}  // namespace millrace::app
