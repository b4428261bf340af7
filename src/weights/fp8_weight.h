#pragma once

#include "tensor/fp8.h"
#include "tensor/sum_shards.h"
#include "weights/stored_weight.h"

namespace millrace::weights {

/// Returns whether tensor/fp8.h describes a weight without loss: codes of E4M3 row by row, whose scales belong to
/// tensors, rows, or blocks of whole multiples of 32 columns.
[[nodiscard]] bool is_fp8(const StoredWeight& weight);

/// Returns some rows of such a weight in place, with the scales that decode_rows() uses.
[[nodiscard]] tensor::Fp8Matrix to_fp8(const StoredWeight& weight, tensor::TermRange rows);

}  // namespace millrace::weights
