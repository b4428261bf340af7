// These functions have a file of their own, like the table of kernels, so that tests can link replacements of both.

#include <algorithm>

#include "cpu/isa.h"
#include "cpu/kernels.h"

namespace millrace::cpu {
namespace {

/// Returns whether bf16 dot products run at half the rate of f32 multiply-adds, as on Intel's cores. Without AMX the
/// set without them is then the faster one (docs/cpu.md).
bool halves_bf16_dots() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kIsas) {
    if (kernels_for(isa) != nullptr && processor_has(isa)) isas.push_back(isa);
  }
  const auto vnni = std::ranges::find(isas, Isa::kAvx512Vnni);
  const auto bf16 = std::ranges::find(isas, Isa::kAvx512Bf16);
  if (halves_bf16_dots() && vnni != isas.end() && bf16 != isas.end()) std::iter_swap(vnni, bf16);
  return isas;
}

}  // namespace millrace::cpu
