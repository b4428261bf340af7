#include "conformance/harness.h"
#include "cuda/cuda_backend.h"

namespace millrace::test {

std::vector<BackendCase> backend_cases() {
  return {{.name = "cuda bf16", .make = [] { return cuda::make_backend({}); }, .table_dtype = tensor::DType::kBF16}};
}

}  // namespace millrace::test
