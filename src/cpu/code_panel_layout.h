#pragma once

#include <span>
#include <vector>

#include "cpu/packed_weight.h"
#include "tensor/code_matrix.h"

/// The layout of panels of codes of 2 to 8 bits (see kernels.h), which follows from the matrices in them.
namespace millrace::cpu {

/// Returns whether one layout can hold all parts without loss: E4M3 factors in all or none, and zero points with
/// neither minimums nor factors of halves.
[[nodiscard]] bool can_pack_codes(std::span<const tensor::CodeMatrix> parts);

/// Returns whether panels of two matrices alone have one layout of codes.
[[nodiscard]] bool share_code_panels(const tensor::CodeMatrix& left, const tensor::CodeMatrix& right);

[[nodiscard]] CodeScaleType code_scale_type(tensor::DType dtype);

/// Returns the layout for parts that are packed together. Codes have the fewest bits of 4, 5, 6 and 8 that hold the
/// integers of all parts, and of 2, 3, 6 and 8 where a part has int8 factors of halves. Only parts of one table or
/// range share 4. Scales have the narrowest type that holds those of all parts; groups are the largest that are whole
/// in all parts and shards.
[[nodiscard]] PanelLayout code_panel_layout(std::span<const tensor::CodeMatrix> parts, std::vector<PanelShard> shards,
                                            bool gate_up);

}  // namespace millrace::cpu
