// The sets of kernels whose instructions are emulated, of which those are tested that this processor lacks.

#include <cstdio>
#include <cstdlib>

#include "cpu/isa.h"
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
  std::vector<Isa> isas;
  // The other programs test the sets that this processor has. AMX stays, so that the emulator is tested everywhere.
  for (const Isa isa : {Isa::kAvx2Vnni, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16}) {
    if (!processor_has(isa)) isas.push_back(isa);
  }
  isas.push_back(Isa::kAmx);
  return isas;
}

}  // namespace millrace::cpu

namespace millrace::test {

void emulated_fault(const char* instruction) {
  std::fprintf(stderr, "%s would fault\n", instruction);
  std::abort();
}

}  // namespace millrace::test
