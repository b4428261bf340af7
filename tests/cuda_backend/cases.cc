#include "conformance/harness.h"
#include "cuda/cuda_backend.h"
#include "cuda_backend/tested_gemm.h"

namespace millrace::test {

std::vector<BackendCase> backend_cases() {
  return {{.name = "cuda bf16",
           .make = [] { return cuda::make_backend({.products = tested_gemm()}); },
           .product_dtype = tensor::DType::kBF16,
           .table_dtype = tensor::DType::kBF16}};
}

}  // namespace millrace::test
