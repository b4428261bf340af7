#include "cpu/kernels.h"

namespace millrace::cpu {

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx2_vnni;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512_vnni;
extern const Kernels kernels_avx512_bf16;
extern const Kernels kernels_amx;
#endif

const Kernels* kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return &kernels_portable;
#if defined(__x86_64__)
    case Isa::kAvx2: return &kernels_avx2;
    case Isa::kAvx2Vnni: return &kernels_avx2_vnni;
    case Isa::kAvx512: return &kernels_avx512;
    case Isa::kAvx512Vnni: return &kernels_avx512_vnni;
    case Isa::kAvx512Bf16: return &kernels_avx512_bf16;
    case Isa::kAmx: return &kernels_amx;
#endif
    default: return nullptr;
  }
}

}  // namespace millrace::cpu
