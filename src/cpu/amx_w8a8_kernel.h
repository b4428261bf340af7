#pragma once

// GEMM of 8-bit panels with 8-bit rows on tile registers (AMX). Included only by kernels.cc.

#include "cpu/amx_kernel.h"
#include "cpu/w8a8_kernel.h"

namespace millrace::cpu {
namespace {

/// A group of 16 rows of tiled_lhs: the values, then scales and compensations.
struct Int8LhsTile {
  int8_t values[kTileHeight][kW8GroupElements];
  float scale[kTileHeight];
  int32_t compensation[kTileHeight];
};
static_assert(sizeof(Int8LhsTile) == kInt8LhsTileBytes);

/// Configures tiles 0 to 3 for sums, 4 and 5 for LHS rows of a group, 6 and 7 for its columns.
MILLRACE_INLINE void configure_int8() {
  TileConfig config;
  config.row_bytes[4] = config.row_bytes[5] = kW8GroupElements;
  config.rows[6] = config.rows[7] = kInt8GroupSteps;
  _tile_loadconfig(&config);
}

using Int8Sums = int32_t[kSquareRows][32];

/// Computes a group's sums for 16 rows, or 32 with a `lower` tile, by 32 columns.
template <bool kBoth>
MILLRACE_INLINE void int8_square(const Int8LhsTile* upper, const Int8LhsTile* lower, const char* b, Int8Sums& sums) {
  constexpr size_t kStride = sizeof(sums[0]);
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(4, upper->values, kW8GroupElements);
  _tile_loadd(6, b, kInt8Columns);
  _tile_dpbsud(0, 4, 6);
  _tile_loadd(7, b + 64, kInt8Columns);
  _tile_dpbsud(1, 4, 7);
  if constexpr (kBoth) {
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(5, lower->values, kW8GroupElements);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  _tile_stored(0, &sums[0][0], kStride);
  _tile_stored(1, &sums[0][16], kStride);
  if constexpr (kBoth) {
    _tile_stored(2, &sums[kTileHeight][0], kStride);
    _tile_stored(3, &sums[kTileHeight][16], kStride);
  }
}

/// Adds the sums of `rows` rows of a tile, times their scales, to c.
MILLRACE_INLINE void add_int8_sums(const Int8LhsTile& lhs, int rows, const Vec (&scale)[2], const int32_t (*sums)[32],
                                   float* c) {
  for (int row = 0; row < rows; ++row, c += kPanelColumns) {
#pragma clang loop unroll(full)
    for (int v = 0; v < 2; ++v) {
      const Ints sum = load_as<Ints>(&sums[row][v * kLanes]) + lhs.compensation[row];
      store(c + v * kLanes, fma(__builtin_convertvector(sum, Vec), scale[v] * lhs.scale[row], load(c + v * kLanes)));
    }
  }
}

/// The sums of a group. The next group's sums are half of 4096 bytes away, so that a load is not mistaken for a recent
/// store (4K aliasing).
struct alignas(64) Int8Buffer {
  Int8Sums sums;
  char gap[2048];
};

/// Multiplies up to 32 rows by 32 columns from `column` on over all groups. The tiles of a group run while the previous
/// group's sums are added.
template <bool kBoth>
MILLRACE_INLINE void int8_columns(const Int8LhsTile* upper, const Int8LhsTile* lower, int rows, const char* panel,
                                  int column, int64_t groups, float* c, PrefetchCursor& ahead) {
  Int8Buffer buffer[2];
  const int upper_rows = rows < kTileHeight ? rows : kTileHeight;
  const char* columns = panel + kW8ScaleBytes + column * kInt8Depth;
  int8_square<kBoth>(upper, lower, columns, buffer[0].sums);
  for (int64_t group = 0; group < groups; ++group) {
    ahead.prefetch();
    if (const int64_t next = group + 1; next < groups) {
      int8_square<kBoth>(upper + next, lower + next, columns + next * kW8GroupBytes, buffer[next % 2].sums);
    }
    const char* scales = panel + group * kW8GroupBytes;
    const Vec scale[2] = {group_scale(scales, column / kLanes), group_scale(scales, column / kLanes + 1)};
    const Int8Sums& sums = buffer[group % 2].sums;
    add_int8_sums(upper[group], upper_rows, scale, sums, c);
    if constexpr (kBoth) {
      add_int8_sums(lower[group], rows - kTileHeight, scale, sums + kTileHeight, c + kTileHeight * kPanelColumns);
    }
  }
}

void gemm_w8a8_amx(const GemmTask& task) {
  if (!task.tiled_lhs) return gemm_w8a8(task);
  const int64_t groups = task.steps / kInt8GroupSteps;
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  if (!task.accumulate) __builtin_memset(task.c, 0, static_cast<size_t>(task.rows) * kPanelColumns * sizeof(float));
  configure_int8();
  PrefetchCursor ahead;
  if (task.next != nullptr) {
    // 34 lines per group, walked once for every 32 columns of up to 32 rows.
    const int squares = (task.rows + kSquareRows - 1) / kSquareRows;
    const auto* next = reinterpret_cast<const char*>(task.next);
    ahead = {next, next + groups * kW8GroupBytes, (17 + squares - 1) / squares};
  }
  for (int column = 0; column < kPanelColumns; column += 32) {
    for (int row = 0; row < task.rows; row += kSquareRows) {
      const int rows = task.rows - row < kSquareRows ? task.rows - row : kSquareRows;
      const char* at = lhs + static_cast<size_t>(row / kTileHeight) * task.lhs_stride;
      const auto* upper = reinterpret_cast<const Int8LhsTile*>(at);
      const auto* lower = reinterpret_cast<const Int8LhsTile*>(at + task.lhs_stride);
      float* const c = task.c + row * kPanelColumns + column;
      if (rows > kTileHeight) {
        int8_columns<true>(upper, lower, rows, panel, column, groups, c, ahead);
      } else {
        int8_columns<false>(upper, upper, rows, panel, column, groups, c, ahead);
      }
    }
  }
  _tile_release();
}

}  // namespace
}  // namespace millrace::cpu
