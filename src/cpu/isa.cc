#include "cpu/isa.h"

#include "cpu/kernels.h"

namespace millrace::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

bool processor_has(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  switch (isa) {
    case Isa::kPortable: return true;
    case Isa::kAvx2: return avx2;
    case Isa::kAvx512: return avx512;
    case Isa::kAvx512Bf16: return avx512 && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return isa == Isa::kPortable;
}

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Bf16: return "avx512_bf16";
  }
  return "unknown";
}

Result<Isa> parse_isa(std::string_view name) {
  for (const Isa isa : kAll) {
    if (name == to_string(isa)) return isa;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "instruction set '{}' is not one of portable, avx2, avx512, avx512_bf16", name);
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAll) {
    if (kernels_for(isa) != nullptr && processor_has(isa)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace millrace::cpu
