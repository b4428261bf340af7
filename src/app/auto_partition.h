#pragma once

#include "app/node_stages.h"
#include "model/layer_range.h"

namespace millrace::app {

/// `--pp-layer-partition auto`: times the parts of the model on a backend like that of this node's stages and divides
/// the layers so that the slowest stage is the fastest, or nearly so where a more even division is a near tie. `node`,
/// whose spans are not read, hosts `node_stage_count` of `stage_count` stages. Logs what it chose and why. Errors name
/// the tensor or flag; kAborted when `node` was interrupted.
[[nodiscard]] Result<std::vector<model::LayerRange>> auto_partition(const model::Checkpoint& checkpoint,
                                                                    const model::ModelConfig& config,
                                                                    const NodeStagesOptions& node,
                                                                    int32_t node_stage_count, int32_t stage_count);

}  // namespace millrace::app
