#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace millrace::cpu {
namespace {

#if defined(__x86_64__)
/// Requests permission to use tile registers. They enlarge the saved state of threads, so Linux requires a request
/// before their first use.
bool may_use_tiles() {
#if defined(__linux__)
  static const bool granted = [] {
    constexpr unsigned kBf16 = 1u << 22;
    constexpr unsigned kTile = 1u << 24;
    constexpr unsigned kInt8 = 1u << 25;
    constexpr unsigned kAll = kBf16 | kTile | kInt8;
    constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kAll) != kAll) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}
#endif

}  // namespace

bool processor_has(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool avx512_vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  const bool avx512_bf16 = avx512_vnni && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  switch (isa) {
    case Isa::kPortable: return true;
    case Isa::kAvx2: return avx2;
    case Isa::kAvx2Vnni: return avx2 && __builtin_cpu_supports("avxvnni");
    case Isa::kAvx512: return avx512;
    case Isa::kAvx512Vnni: return avx512_vnni;
    case Isa::kAvx512Bf16: return avx512_bf16;
    case Isa::kAmx: return avx512_bf16 && may_use_tiles();
  }
#endif
  return isa == Isa::kPortable;
}

}  // namespace millrace::cpu
