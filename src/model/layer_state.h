#pragma once

#include <cstdint>

#include "model/layer_config.h"

namespace millrace::model {

/// Returns the values (f32) of one sequence's state in a layer on one of `ranks` ranks; 0 for a layer without a state.
/// They are the last inputs of its convolution, then its recurrent state.
[[nodiscard]] int64_t state_values(const LayerConfig& layer, int32_t ranks = 1);

}  // namespace millrace::model
