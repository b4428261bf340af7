#pragma once

#include "tensor/backend.h"

namespace millrace::tensor {

/// Returns whether GEMMs can round their inputs to int8 (W8Activations::kInt8), and those with 4-bit weights do, as on
/// the CPU. On other devices a GEMM with 4-bit weights equals, bit for bit, one with the dequantized weights rounded to
/// the compute dtype.
[[nodiscard]] inline bool quantizes_inputs(const Backend& backend) {
  return backend.is_host();
}

}  // namespace millrace::tensor
