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

/// Of the contiguous divisions whose slowest stage costs no more than the fastest possible one and the part `noise` of
/// it, the one nearest to divide_layers: costs that are measured anew, and are off by less, give the same division
/// where two are nearly tied. Every stage gets a layer. Error: more stages than layers.
[[nodiscard]] Result<std::vector<LayerRange>> balance_layers(const PartCosts& costs, int32_t stage_count, double noise);

}  // namespace millrace::model
