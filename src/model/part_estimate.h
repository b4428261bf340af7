#pragma once

#include "model/config.h"
#include "model/layer_balance.h"
#include "model/part_timing.h"

namespace millrace::model {

/// Returns estimates of what time_parts() measures, in any one unit, from the sizes of the weights alone. A matrix
/// costs its parameters times the rows that it multiplies, or what reading it costs if the rows are few. Attention and
/// activations are left out, and the embedding is free.
[[nodiscard]] WorkCosts estimate_parts(const ModelConfig& config, const ReferenceLoad& load);

}  // namespace millrace::model
