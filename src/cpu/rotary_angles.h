#pragma once

#include <cstdint>
#include <vector>

#include "cpu/device.h"
#include "tensor/backend.h"

namespace millrace::cpu {

/// Returns the position of each row of a batch in its sequence.
[[nodiscard]] std::vector<int32_t> positions_of(const tensor::BatchLayout& batch);

/// Returns the cos and sin of rows at these positions. They are kept for the next layers, until the device has computed
/// several others.
[[nodiscard]] const RotaryAngles& angles_for(Device& device, const tensor::RotaryTable& rotary,
                                             std::vector<int32_t> positions);

/// Returns the factor of queries at a position: see RotaryTable::query_beta.
[[nodiscard]] float query_factor(const tensor::RotaryTable& rotary, int32_t position);

}  // namespace millrace::cpu
