#include "conformance/harness.h"
#include "cpu/cpu_backend.h"
#include "cpu/kernels.h"

namespace millrace::test {

using tensor::DType;
using tensor::KvDType;

std::vector<BackendCase> backend_cases() {
  std::vector<BackendCase> cases;
  for (const cpu::Isa isa : cpu::available_isas()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::string name = fmt::format("cpu {} {}", cpu::to_string(isa), tensor::to_string(dtype));
      const auto maker = [isa](DType compute) {
        return [isa, compute] { return cpu::make_backend({.threads = 2, .compute_dtype = compute, .isa = isa}); };
      };
      const DType product = cpu::kernels_for(isa)->bf16_lhs ? dtype : DType::kF32;
      cases.push_back({.name = name,
                       .make = maker(dtype),
                       .product_dtype = product,
                       .scales_sums = product == DType::kBF16 && cpu::kernels_for(isa)->w8_interleaved,
                       .make_plain = maker(product)});
    }
  }
  return cases;
}

std::vector<CodedBackend> coded_backends() {
  std::vector<CodedBackend> backends;
  for (const cpu::Isa isa : cpu::available_isas()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const KvDType stored : {KvDType::kInt8, KvDType::kFp8E4M3}) {
        backends.push_back(
            {.name = fmt::format("cpu {} {}, {}", cpu::to_string(isa), tensor::to_string(dtype), enum_name(stored)),
             .stored = stored,
             .backend = cpu::make_backend({.threads = 2, .compute_dtype = dtype, .kv_dtype = stored, .isa = isa})});
      }
    }
  }
  return backends;
}

}  // namespace millrace::test
