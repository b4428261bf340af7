#pragma once

// GEMM of 4-bit panels with 8-bit rows on tile registers (AMX). Included only by kernels.cc.

#include "cpu/amx_w8a8_kernel.h"
#include "cpu/w4_kernel.h"

namespace millrace::cpu {
namespace {

/// Adds the sums of `rows` rows of a tile by 32 columns of a unit, times their scales, to c.
template <W4OffsetType kType>
MILLRACE_INLINE void add_w4_tile(const Int8LhsTile& lhs, int rows, const W4Terms (&terms)[2], int offset,
                                 const int32_t (*sums)[32], float* c) {
  for (int row = 0; row < rows; ++row, c += kPanelColumns) {
    const W4Lhs of_row({.scale = lhs.scale[row], .compensation = lhs.compensation[row]}, offset);
#pragma clang loop unroll(full)
    for (int v = 0; v < 2; ++v) {
      const Ints sum = load_as<Ints>(&sums[row][v * kLanes]) + of_row.addend;
      store(c + v * kLanes, add_w4_sums<kType>(sum, terms[v], of_row, load(c + v * kLanes)));
    }
  }
}

/// Unpacks the codes of a block. Where the halves of units have factors of their own, a unit becomes two, each with the
/// other half's weights zero.
template <W4Codes kCodes>
MILLRACE_INLINE void unpack_w4_block(const W4PanelFormat& format, W4Cursor& cursor, int64_t steps, const W4Table& table,
                                     std::byte* scratch, W4Block& block) {
  block.unpack<has_w4_table(kCodes)>(cursor, steps, table, scratch);
  if constexpr (kCodes == W4Codes::kTableHalves) {
    constexpr size_t kHalfBytes = kUnpackedUnitBytes / 2;
    static_assert(2 * kUnpackedUnits * kUnpackedUnitBytes <= static_cast<int>(kW8ScratchBytes));
    for (int unit = block.count - 1; unit >= 0; --unit) {
      std::byte* const from = scratch + unit * kUnpackedUnitBytes;
      std::byte* const to = scratch + 2 * unit * kUnpackedUnitBytes;
      __builtin_memcpy(to + 3 * kHalfBytes, from + kHalfBytes, kHalfBytes);
      __builtin_memset(to + 2 * kHalfBytes, format.offset, kHalfBytes);
      __builtin_memmove(to, from, kHalfBytes);
      __builtin_memset(to + kHalfBytes, format.offset, kHalfBytes);
    }
  }
}

/// Multiplies up to 32 rows by 32 columns from `column` on over a block of units of `kParts` parts. The tiles of a part
/// run while the previous part's sums are added.
template <bool kBoth, int kParts>
MILLRACE_INLINE void w4_columns(const W4PanelFormat& format, const W4Block& block, const char* unpacked,
                                const Int8LhsTile* upper, const Int8LhsTile* lower, int rows, int column, float* c,
                                W4Prefetch& ahead) {
  Int8Buffer buffer[2];
  const int upper_rows = rows < kTileHeight ? rows : kTileHeight;
  const int offset = w4_offset(format);
  const char* columns = unpacked + column * kInt8Depth;
  int8_square<kBoth>(upper, lower, columns, buffer[0].sums);
  for (int at = 0; at < block.count * kParts; ++at) {
    const int unit = at / kParts;
    if (at % kParts == 0) ahead.run_some();
    if (const int next = at + 1; next < block.count * kParts) {
      int8_square<kBoth>(upper + next / kParts, lower + next / kParts, columns + next * kUnpackedUnitBytes,
                         buffer[next % 2].sums);
    }
    const int vec = column / kLanes;
    const W4Terms terms[2] = {load_w4_terms(format, block.units[unit], vec, at % kParts),
                              load_w4_terms(format, block.units[unit], vec + 1, at % kParts)};
    const Int8Sums& sums = buffer[at % 2].sums;
    with_w4_offsets(format.offset_type, [&](auto type) __attribute__((always_inline)) {
      constexpr W4OffsetType kType = decltype(type)::kValue;
      add_w4_tile<kType>(upper[unit], upper_rows, terms, offset, sums, c);
      if constexpr (kBoth) {
        add_w4_tile<kType>(lower[unit], rows - kTileHeight, terms, offset, sums + kTileHeight,
                           c + kTileHeight * kPanelColumns);
      }
    });
  }
}

template <W4Codes kCodes>
void tiled_w4(const GemmTask& task) {
  constexpr int kParts = kCodes == W4Codes::kTableHalves ? 2 : 1;
  const W4PanelFormat& format = *task.w4;
  const W4Table table(format);
  W4Cursor cursor(format, task.panel);
  const int squares = (task.rows + kSquareRows - 1) / kSquareRows;
  if (!task.accumulate) clear_w4_sums(task);
  configure_int8();
  for (int64_t step = 0; step < task.steps; step += int64_t{kUnpackedUnits} * kW4UnitSteps) {
    W4Block block;
    unpack_w4_block<kCodes>(format, cursor, task.steps - step, table, task.scratch, block);
    const bool is_last = task.steps - step <= int64_t{kUnpackedUnits} * kW4UnitSteps;
    W4Prefetch ahead = block.prefetch(task, is_last, 2 * squares * block.count);
    const auto* const unpacked = reinterpret_cast<const char*>(task.scratch);
    for (int column = 0; column < kPanelColumns; column += 32) {
      for (int row = 0; row < task.rows; row += kSquareRows) {
        const int rows = task.rows - row < kSquareRows ? task.rows - row : kSquareRows;
        const char* at =
            reinterpret_cast<const char*>(task.lhs) + static_cast<size_t>(row / kTileHeight) * task.lhs_stride;
        const auto* upper = reinterpret_cast<const Int8LhsTile*>(at) + step / kW4UnitSteps;
        const auto* lower = reinterpret_cast<const Int8LhsTile*>(at + task.lhs_stride) + step / kW4UnitSteps;
        float* const c = task.c + row * kPanelColumns + column;
        if (rows > kTileHeight) {
          w4_columns<true, kParts>(format, block, unpacked, upper, lower, rows, column, c, ahead);
        } else {
          w4_columns<false, kParts>(format, block, unpacked, upper, upper, rows, column, c, ahead);
        }
      }
    }
  }
  _tile_release();
}

void gemm_w4_amx(const GemmTask& task) {
  if (!task.tiled_lhs) return gemm_w4(task);
  switch (w4_codes(*task.w4)) {
    case W4Codes::kPlain: return tiled_w4<W4Codes::kPlain>(task);
    case W4Codes::kTable: return tiled_w4<W4Codes::kTable>(task);
    case W4Codes::kTableHalves: return tiled_w4<W4Codes::kTableHalves>(task);
  }
}

}  // namespace
}  // namespace millrace::cpu
