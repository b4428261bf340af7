#pragma once

#include <functional>
#include <string>

#include "cuda/cuda_backend.h"
#include "cuda/handles.h"
#include "cuda/kernels.h"

namespace millrace::cuda {

/// Returns the instruction for all GEMMs of a backend. It is wgmma where the device has it and passes a self-test on
/// random numbers. The results must agree with mma's to rounding, and each row must have the same bits in tiles of
/// every width. A device that fails (none is known) would not be batch-invariant. Failing is a warning, or an error
/// when wgmma was requested by name. It runs on `stream` and waits; `device` is current.
[[nodiscard]] MatrixInstruction select_gemm(GemmChoice wanted, int device, const Stream& stream,
                                            const std::function<void(const std::string& what)>& warn);
[[nodiscard]] constexpr const char* to_string(MatrixInstruction by) {
  return by == MatrixInstruction::kWgmma ? "wgmma" : "mma";
}

}  // namespace millrace::cuda
