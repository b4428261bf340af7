#pragma once

#include <span>

#include "cpu/packed_weight.h"
#include "cpu/source_row.h"
#include "tensor/code_matrix.h"

namespace millrace::cpu {

/// Writes 64 rows of codes as the columns of a panel of the layout of code_panel_layout.h. `signed_codes` is that of
/// the kernels.
void pack_code_panel(std::span<const SourceRow<tensor::CodeMatrix>> rows, bool signed_codes,
                     const CpuPackedWeight& weight, int64_t index);

}  // namespace millrace::cpu
