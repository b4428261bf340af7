#pragma once

// GEMM of panels of codes of 2, 3, 5, 6 or 8 bits with 8-bit rows on tile registers (AMX). Included only by kernels.cc.

#include "cpu/amx_nibble_kernel.h"
#include "cpu/byte_kernel.h"

namespace millrace::cpu {
namespace {

template <bool kHalves>
void tiled_bytes(const GemmTask& task) {
  if (task.codes->bits == 6) return tiled_codes<kHalves>(task, unpack_runs<6>);
  if constexpr (kHalves) {
    if (task.codes->bits == 2) return tiled_codes<true>(task, unpack_runs<2>);
    if (task.codes->bits == 3) return tiled_codes<true>(task, unpack_runs<3>);
  } else {
    if (task.codes->bits == 5) return tiled_codes<false>(task, unpack_runs<5>);
  }
  tiled_codes<kHalves>(task, [](const char* codes, char* out) { __builtin_memcpy(out, codes, kByteUnitCodeBytes); });
}

void gemm_bytes_amx(const GemmTask& task) {
  if (!task.tiled_lhs) return gemm_bytes(task);
  if (task.codes->has_half_factors()) return tiled_bytes<true>(task);
  tiled_bytes<false>(task);
}

}  // namespace
}  // namespace millrace::cpu
