#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace millrace::tensor {

/// The instruction sets for which the CPU backend has kernels. On most processors a later one is faster.
enum class Isa : uint8_t { kPortable, kAvx2, kAvx2Vnni, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };

inline constexpr EnumName<Isa> kIsaNames[] = {
    {Isa::kPortable, "portable"},
    {Isa::kAvx2, "avx2"},
    {Isa::kAvx2Vnni, "avx2_vnni"},
    {Isa::kAvx512, "avx512"},
    {Isa::kAvx512Vnni, "avx512_vnni"},
    {Isa::kAvx512Bf16, "avx512_bf16"},
    {Isa::kAmx, "amx"},
};
constexpr std::span<const EnumName<Isa>> enum_names(Isa) {
  return kIsaNames;
}

}  // namespace millrace::tensor
