#pragma once

#include <span>
#include <vector>

#include "cpu/packed_weight.h"
#include "cpu/source_row.h"
#include "tensor/code_matrix.h"

/// Panels of codes of 4 or 8 bits (see kernels.h).
namespace millrace::cpu {

/// Returns whether one layout can hold all parts without loss: E4M3 factors in all or none, and zero points with
/// neither minimums nor factors of halves.
[[nodiscard]] bool can_pack_codes(std::span<const tensor::CodeMatrix> parts);

/// Returns whether panels of two matrices alone have one layout of codes.
[[nodiscard]] bool share_code_panels(const tensor::CodeMatrix& left, const tensor::CodeMatrix& right);

/// Returns the layout for parts that are packed together. Parts that do not share one of 4 bits have codes of 8 bits.
/// Scales have the narrowest type that holds those of all parts; groups are the largest that are whole in all parts and
/// shards.
[[nodiscard]] PanelLayout code_panel_layout(std::span<const tensor::CodeMatrix> parts, std::vector<PanelShard> shards,
                                            bool gate_up);

/// Writes 64 rows of codes as the columns of a panel. `signed_codes` is that of the kernels.
void pack_code_panel(std::span<const SourceRow<tensor::CodeMatrix>> rows, bool signed_codes,
                     const CpuPackedWeight& weight, int64_t index);

}  // namespace millrace::cpu
