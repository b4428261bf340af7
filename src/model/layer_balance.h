#pragma once

#include <vector>

#include "model/layer_range.h"

namespace millrace::model {

/// The costs of a model's parts on one device, in any one unit.
struct PartCosts {
  std::vector<double> layers;  // [layer_count]
  double embedding = 0;        ///< paid by the first stage
  double head = 0;             ///< paid by the last stage: final norm, logits, sampling
};

/// The costs of a model's parts under each kind of work.
struct WorkCosts {
  PartCosts prefill;  ///< of one prompt
  PartCosts decode;   ///< of one decode step
};

/// Returns the costs of one prompt and `steps` decode steps.
[[nodiscard]] PartCosts mixed_costs(const WorkCosts& costs, double steps);

/// Returns the cost of each stage for a division of the model. Ranges are as in divide_layers.
[[nodiscard]] std::vector<double> stage_costs(const PartCosts& costs, const std::vector<LayerRange>& ranges);

/// Returns the cost of each stage as a fraction of the slowest one's: how long it is busy when that one always is.
[[nodiscard]] std::vector<double> busy_shares(const PartCosts& costs, const std::vector<LayerRange>& ranges);

/// Returns a contiguous division whose slowest stage is within the fraction `noise` of the fastest possible one. Of
/// these it is the one nearest to divide_layers. Remeasured costs that differ by less than `noise` therefore give the
/// same division in near ties. Every stage gets a layer. Error: more stages than layers.
[[nodiscard]] Result<std::vector<LayerRange>> balance_layers(const PartCosts& costs, int32_t stage_count, double noise);

}  // namespace millrace::model
