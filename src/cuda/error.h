#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace millrace::cuda {

/// "out of memory (cudaErrorMemoryAllocation)".
[[nodiscard]] std::string describe_error(cudaError_t error);

/// Throws std::runtime_error, "CUDA: WHAT: …", unless the call has succeeded. The error is told once: it is cleared.
void check(cudaError_t outcome, const char* what);

}  // namespace millrace::cuda
