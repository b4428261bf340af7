#include "cuda/error.h"

#include <stdexcept>

namespace millrace::cuda {

std::string describe_error(cudaError_t error) {
  return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
}

void check(cudaError_t outcome, const char* what) {
  if (outcome == cudaSuccess) return;
  (void)cudaGetLastError();
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + describe_error(outcome));
}

}  // namespace millrace::cuda
