#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace millrace::cuda {

/// Returns text such as "out of memory (cudaErrorMemoryAllocation)".
[[nodiscard]] std::string describe_error(cudaError_t error);

/// Throws std::runtime_error, "CUDA: WHAT: …", unless the call succeeded. It clears the error, which is thus reported
/// once.
void check(cudaError_t outcome, const char* what);

}  // namespace millrace::cuda
