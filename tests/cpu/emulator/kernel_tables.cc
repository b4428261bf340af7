// The sets of kernels whose instructions are emulated, in place of those of this binary and processor.

#include <cstdio>
#include <cstdlib>

#include "cpu/kernels.h"

namespace millrace::cpu {

extern const Kernels kernels_emulated_avx2_vnni;
extern const Kernels kernels_emulated_avx512;
extern const Kernels kernels_emulated_avx512_vnni;
extern const Kernels kernels_emulated_avx512_bf16;
extern const Kernels kernels_emulated_amx;

const Kernels* kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kAvx2Vnni: return &kernels_emulated_avx2_vnni;
    case Isa::kAvx512Vnni: return &kernels_emulated_avx512_vnni;
    case Isa::kAvx512: return &kernels_emulated_avx512;
    case Isa::kAvx512Bf16: return &kernels_emulated_avx512_bf16;
    case Isa::kAmx: return &kernels_emulated_amx;
    default: return nullptr;
  }
}

std::vector<Isa> available_isas() {
  return {Isa::kAvx2Vnni, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};
}

}  // namespace millrace::cpu

namespace millrace::test {

void emulated_fault(const char* instruction) {
  std::fprintf(stderr, "%s would fault\n", instruction);
  std::abort();
}

}  // namespace millrace::test
