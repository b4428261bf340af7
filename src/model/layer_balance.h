#pragma once

#include <vector>

#include "model/layer_range.h"

namespace millrace::model {

/// What the parts of a model cost on one device, in any one unit.
struct PartCosts {
  std::vector<double> layers;  // [layer_count]
  double embedding = 0;        ///< paid by the first stage
  double head = 0;             ///< final norm, projection to logits, sampling: paid by the last stage
};

/// Cost per stage of a division of the model; ranges as of divide_layers.
[[nodiscard]] std::vector<double> stage_costs(const PartCosts& costs, const std::vector<LayerRange>& ranges);

/// The contiguous division whose slowest stage is the fastest possible; among those, the one with the least sum of
/// squares, so that the other stages are even too. Every stage gets a layer. Error: more stages than layers.
[[nodiscard]] Result<std::vector<LayerRange>> balance_layers(const PartCosts& costs, int32_t stage_count);

}  // namespace millrace::model
