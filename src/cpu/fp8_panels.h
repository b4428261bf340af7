#pragma once

#include <span>
#include <vector>

#include "cpu/packed_weight.h"
#include "cpu/source_row.h"
#include "tensor/fp8.h"

/// Panels of weights in E4M3 (see kernels.h).
namespace millrace::cpu {

/// Returns the layout for parts that are packed together. Groups are the largest that have one scale in all parts and
/// are whole in all shards. `sum`, unless null, has the shards of all ranks, so that every count of ranks has the same
/// groups.
[[nodiscard]] PanelLayout fp8_panel_layout(const Device& device, std::span<const tensor::Fp8Matrix> parts,
                                           const tensor::SumShards* sum, std::vector<PanelShard> shards, bool gate_up);

/// Writes 64 rows of E4M3 as the columns of a panel.
void pack_fp8_panel(std::span<const SourceRow<tensor::Fp8Matrix>> rows, const CpuPackedWeight& weight, int64_t index);

}  // namespace millrace::cpu
