#include "conformance/harness.h"
#include "cpu/cpu_backend.h"

namespace millrace::test {

using tensor::DType;

std::vector<BackendCase> backend_cases() {
  std::vector<BackendCase> cases;
  for (const cpu::Isa isa : cpu::available_isas()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::string name = fmt::format("cpu {} {}", cpu::to_string(isa), tensor::to_string(dtype));
      cases.push_back(
          {name, [isa, dtype] { return cpu::make_backend({.threads = 2, .compute_dtype = dtype, .isa = isa}); }});
    }
  }
  return cases;
}

}  // namespace millrace::test
