#pragma once

#include <span>
#include <vector>

#include "cpu/packed_weight.h"
#include "cpu/source_row.h"
#include "tensor/w4.h"

/// Panels of 4-bit weights (see kernels.h).
namespace millrace::cpu {

/// Returns the layout for parts that are packed together. Scales have the narrowest type that holds those of all parts;
/// groups are the largest that are whole in all parts and shards.
[[nodiscard]] PanelLayout w4_panel_layout(std::span<const tensor::W4Matrix> parts, std::vector<PanelShard> shards,
                                          bool gate_up);

/// Writes 64 4-bit rows as the columns of a panel.
void pack_w4_panel(std::span<const SourceRow<tensor::W4Matrix>> rows, const CpuPackedWeight& weight, int64_t index);

}  // namespace millrace::cpu
