#pragma once

// GEMM of panels of 8-bit codes with 8-bit rows on tile registers (AMX). Included only by kernels.cc.

#include "cpu/amx_nibble_kernel.h"
#include "cpu/byte_kernel.h"

namespace millrace::cpu {
namespace {

/// Copies the codes of a block, which lie between other parts of the panel. Where the halves of units have factors of
/// their own, a unit becomes two, each with the other half's weights zero.
template <bool kHalves>
MILLRACE_INLINE void copy_byte_block(const CodePanelFormat& format, CodeCursor& cursor, int64_t steps,
                                     std::byte* scratch, NibbleBlock& block) {
  constexpr size_t kHalfBytes = kByteUnitCodeBytes / 2;
  const int64_t rest = steps / kCodeUnitSteps;
  block.count = rest < kUnpackedUnits ? static_cast<int>(rest) : kUnpackedUnits;
  block.begin = cursor.at();
  for (int i = 0; i < block.count; ++i) {
    block.units[i] = cursor.take();
    std::byte* const to = scratch + i * kByteUnitCodeBytes * (kHalves ? 2 : 1);
    __builtin_memcpy(to, block.units[i].codes, kHalves ? kHalfBytes : kByteUnitCodeBytes);
    if constexpr (kHalves) {
      __builtin_memset(to + kHalfBytes, format.offset, 2 * kHalfBytes);
      __builtin_memcpy(to + 3 * kHalfBytes, block.units[i].codes + kHalfBytes, kHalfBytes);
    }
  }
  block.end = cursor.at();
}

template <bool kHalves>
void tiled_bytes(const GemmTask& task) {
  constexpr int kParts = kHalves ? 2 : 1;
  const CodePanelFormat& format = *task.codes;
  CodeCursor cursor(format, task.panel);
  const int squares = (task.rows + kSquareRows - 1) / kSquareRows;
  if (!task.accumulate) clear_code_sums(task);
  configure_int8();
  for (int64_t step = 0; step < task.steps; step += int64_t{kUnpackedUnits} * kCodeUnitSteps) {
    NibbleBlock block;
    copy_byte_block<kHalves>(format, cursor, task.steps - step, task.scratch, block);
    const bool is_last = task.steps - step <= int64_t{kUnpackedUnits} * kCodeUnitSteps;
    PanelPrefetch ahead = block.prefetch(task, is_last, 2 * squares * block.count);
    const auto* const unpacked = reinterpret_cast<const char*>(task.scratch);
    for (int column = 0; column < kPanelColumns; column += 32) {
      for (int row = 0; row < task.rows; row += kSquareRows) {
        const int rows = task.rows - row < kSquareRows ? task.rows - row : kSquareRows;
        const char* at =
            reinterpret_cast<const char*>(task.lhs) + static_cast<size_t>(row / kTileHeight) * task.lhs_stride;
        const auto* upper = reinterpret_cast<const Int8LhsTile*>(at) + step / kCodeUnitSteps;
        const auto* lower = reinterpret_cast<const Int8LhsTile*>(at + task.lhs_stride) + step / kCodeUnitSteps;
        float* const c = task.c + row * kPanelColumns + column;
        if (rows > kTileHeight) {
          code_columns<true, kParts>(format, block, unpacked, upper, lower, rows, column, c, ahead);
        } else {
          code_columns<false, kParts>(format, block, unpacked, upper, upper, rows, column, c, ahead);
        }
      }
    }
  }
  _tile_release();
}

void gemm_bytes_amx(const GemmTask& task) {
  if (!task.tiled_lhs) return gemm_bytes(task);
  if (task.codes->has_half_factors()) return tiled_bytes<true>(task);
  tiled_bytes<false>(task);
}

}  // namespace
}  // namespace millrace::cpu
