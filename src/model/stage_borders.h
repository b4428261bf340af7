#pragma once

#include <vector>

#include "model/config.h"
#include "model/layer_range.h"

namespace millrace::model {

/// Returns whether a stage can begin with a layer. One that sees what the layer before it sees belongs to its stage; so
/// do all layers from one whose keys and values a later layer sees to that layer.
[[nodiscard]] bool can_begin_stage(const ModelConfig& config, int32_t layer);
/// Returns the largest number of stages of a model.
[[nodiscard]] int32_t largest_stage_count(const ModelConfig& config);
/// Moves the borders of a division to layers that can begin a stage, each to the nearest one before it that leaves
/// every stage a layer, else after it. Error: more stages than there are such layers.
[[nodiscard]] Result<std::vector<LayerRange>> move_borders(const ModelConfig& config, std::vector<LayerRange> ranges);
/// Refuses a division with a stage that cannot begin with its first layer.
[[nodiscard]] Result<void> check_borders(const ModelConfig& config, const std::vector<LayerRange>& ranges);

}  // namespace millrace::model
