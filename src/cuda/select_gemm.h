#pragma once

#include <functional>
#include <string>

#include "cuda/cuda_backend.h"
#include "cuda/handles.h"
#include "cuda/kernels.h"

namespace millrace::cuda {

/// What the products of a backend go by. wgmma is taken where the device has it and where products of random numbers
/// agree with mma's to rounding and have, row by row, the same bits in tiles of each width: a device on which they do
/// not, which is not known to exist, would give answers that depend on their company. Such a device is a warning, and
/// an error where wgmma is asked for by name. Runs on `stream`, and waits for it; `device` is current.
[[nodiscard]] MatrixInstruction select_gemm(GemmChoice wanted, int device, const Stream& stream,
                                            const std::function<void(const std::string& what)>& warn);
[[nodiscard]] constexpr const char* to_string(MatrixInstruction by) {
  return by == MatrixInstruction::kWgmma ? "wgmma" : "mma";
}

}  // namespace millrace::cuda
