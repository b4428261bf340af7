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

std::vector<CodedBackend> coded_backends() {
  std::vector<CodedBackend> backends;
  for (const tensor::KvDType stored : {tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3}) {
    backends.push_back({.name = fmt::format("cuda bf16, {}", enum_name(stored)),
                        .stored = stored,
                        .backend = cuda::make_backend({.products = tested_gemm(), .kv_dtype = stored})});
  }
  return backends;
}

}  // namespace millrace::test
