#include "conformance/harness.h"
#include "cuda/cuda_backend.h"

namespace millrace::test {

std::vector<BackendCase> backend_cases() {
  return {{"cuda bf16", [] { return cuda::make_backend({}); }, tensor::DType::kBF16}};
}

}  // namespace millrace::test
