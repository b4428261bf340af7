#pragma once

// GEMM on tile registers (AMX). Included only by kernels.cc.
//
//
// A tile instruction sums 32 elements of a row with 16 columns in an order of its own. All paths therefore cut the
// summed dimension at the same points: at 32 elements for GEMMs and scores, at the 16 keys of a group for values, or at
// the 32 keys of two groups where values are latents.
// Panels and heads are padded to whole tiles (Kernels::step_multiple, head_multiple).

#include "cpu/gemm_kernel.h"

namespace millrace::cpu {
namespace {

constexpr int64_t kTileSteps = 16;
constexpr size_t kTileBytes = kTileHeight * 64;

/// Tiles 0 to 3: sums; 4, 5: LHS rows; 6, 7: columns.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

MILLRACE_INLINE void configure_gemm(int rows) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) config.rows[tile] = static_cast<uint8_t>(rows);
  _tile_loadconfig(&config);
}

/// Configures tiles for tile_square() with 17 to 31 rows.
MILLRACE_INLINE void configure_square(int rows) {
  TileConfig config;
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(rows - kTileHeight);
  _tile_loadconfig(&config);
}

/// Bytes of 16 steps of a panel: four tiles of 16 columns each.
constexpr size_t kStepTilesBytes = kPanelColumns / 16 * kTileBytes;
constexpr size_t kTileStride = 64;  // bytes from row to row of a tile that lies in one piece
constexpr size_t kSumStride = kPanelColumns * sizeof(float);

/// The address of the LHS tiles of a group of 16 rows.
struct LhsTiles {
  const char* data = nullptr;
  size_t row_stride = 0;
  size_t tile_stride = 0;  // from 16 steps to the next
};

/// Returns the tiles of the 16 rows from `row` on, from `step` on. `row` is a multiple of 16.
MILLRACE_INLINE LhsTiles lhs_tiles(const GemmTask& task, int row, int64_t step) {
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  if (!task.tiled_lhs) return {lhs + static_cast<size_t>(row) * task.lhs_stride + step * 4, task.lhs_stride, 64};
  return {lhs + static_cast<size_t>(row / kTileHeight) * task.lhs_stride +
              static_cast<size_t>(step / kTileSteps) * kTileBytes,
          kTileStride, kTileBytes};
}

/// Multiplies an LHS tile by a tile of columns into a tile of sums.
struct Bf16Dot {
  template <int kSum, int kLeft, int kColumns>
  static MILLRACE_INLINE void add() {
    _tile_dpbf16ps(kSum, kLeft, kColumns);
  }
};

/// Clears tiles 0 to 3, the sums of up to 16 rows by 64 columns.
MILLRACE_INLINE void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

MILLRACE_INLINE void load_sums(const float* c) {
  _tile_loadd(0, c, kSumStride);
  _tile_loadd(1, c + 16, kSumStride);
  _tile_loadd(2, c + 32, kSumStride);
  _tile_loadd(3, c + 48, kSumStride);
}

MILLRACE_INLINE void store_sums(float* c) {
  _tile_stored(0, c, kSumStride);
  _tile_stored(1, c + 16, kSumStride);
  _tile_stored(2, c + 32, kSumStride);
  _tile_stored(3, c + 48, kSumStride);
}

/// Adds to the sums of 16 columns the LHS tile times those columns over 16 steps of a panel.
template <class Dot, int kColumns>
MILLRACE_INLINE void multiply_tile(const char* b) {
  _tile_loadd(6 + kColumns % 2, b + kColumns * kTileBytes, kTileStride);
  Dot::template add<kColumns, 4, 6 + kColumns % 2>();
}

/// Adds to the sums one LHS tile times 16 steps of a panel.
template <class Dot>
MILLRACE_INLINE void multiply_tiles(const LhsTiles& lhs, const char* b) {
  _tile_loadd(4, lhs.data, lhs.row_stride);
  multiply_tile<Dot, 0>(b);
  multiply_tile<Dot, 1>(b);
  multiply_tile<Dot, 2>(b);
  multiply_tile<Dot, 3>(b);
}

/// Bytes by which a panel that few rows stream is prefetched into the second-level cache. The distance is short: the
/// hardware prefetcher continues from the latest prefetch, and does worse beyond a page.
constexpr size_t kStreamPrefetchDistance = 768;

/// Multiplies up to 16 rows by 64 columns over some steps. Adds to c unless `fresh`.
template <class Dot, bool kPrefetch>
MILLRACE_INLINE void tile_row(LhsTiles lhs, const char* panel, int64_t steps, float* c, bool fresh) {
  fresh ? clear_sums() : load_sums(c);
  const char* b = panel;
  for (int64_t step = 0; step < steps; step += kTileSteps) {
    if constexpr (kPrefetch) {
#pragma clang loop unroll(full)
      for (size_t line = 0; line < kStepTilesBytes; line += 64)
        __builtin_prefetch(b + line + kStreamPrefetchDistance, 0, kPrefetchToL2);
    }
    multiply_tiles<Dot>(lhs, b);
    lhs.data += lhs.tile_stride;
    b += kStepTilesBytes;
  }
  store_sums(c);
}

constexpr int kSquareRows = 2 * kTileHeight;
/// Rows from which computing with a panel takes longer than reading it.
constexpr int kManySquareRows = 192;
/// Steps per block with that many rows. A block of 32 rows (32 KB) is read twice, the second time from the first-level
/// cache. The panel's block (64 KB) stays in the second-level cache for all rows.
constexpr int64_t kSquareSteps = 256;
/// Steps per block with fewer rows: memory is the limit and reads longer runs.
constexpr int64_t kLongSquareSteps = 512;

/// Prefetches the next block of a panel, some lines with every tile of this one.
struct PrefetchCursor {
  const char* at = nullptr;
  const char* end = nullptr;
  int64_t lines = 0;  // per 16 steps of a square

  MILLRACE_INLINE void prefetch() {
    for (int64_t i = 0; i < lines && at < end; ++i, at += 64) __builtin_prefetch(at, 0, kPrefetchToL2);
  }
};

/// Prefetches the lines of a tile that will be loaded soon.
MILLRACE_INLINE void prefetch_tile(const char* tile) {
#pragma clang loop unroll(full)
  for (size_t line = 0; line < kTileBytes; line += 64) __builtin_prefetch(tile + line, 0, kPrefetchToL1);
}

/// An epilogue that leaves finished sums as they are.
struct NoEpilogue {
  explicit NoEpilogue(const GemmTask&) {}
  MILLRACE_INLINE void finish_square(int, int) {}
  MILLRACE_INLINE void run_some() {}
  MILLRACE_INLINE void run_rest() {}
  MILLRACE_INLINE void finish_row(int, int) {}
};

/// Multiplies 32 tiled rows by 32 columns, so that each loaded tile is used twice. Without `kBoth` it multiplies only
/// the upper 16 rows. Adds to c unless `fresh`. `kStepBytes` is the distance between the tiles of consecutive steps.
/// With `kPrefetch` it prefetches the next tiles. Otherwise loads from the second-level cache would occupy the few
/// slots that loads from memory need. Between the tiles, vector units run `interleaved`.
template <class Dot, size_t kStepBytes, bool kBoth, bool kPrefetch, class InterleavedWork>
MILLRACE_INLINE void tile_square(const char* upper, const char* lower, const char* b, int64_t steps, float* c,
                                 bool fresh, PrefetchCursor& ahead, InterleavedWork& interleaved) {
  float* const below = c + kTileHeight * kPanelColumns;
  if (fresh) {
    clear_sums();
  } else {
    _tile_loadd(0, c, kSumStride);
    _tile_loadd(1, c + 16, kSumStride);
    if constexpr (kBoth) {
      _tile_loadd(2, below, kSumStride);
      _tile_loadd(3, below + 16, kSumStride);
    }
  }
  for (int64_t step = 0; step < steps; step += kTileSteps) {
    ahead.prefetch();
    _tile_loadd(6, b, kTileStride);
    _tile_loadd(4, upper, kTileStride);
    Dot::template add<0, 4, 6>();
    _tile_loadd(7, b + kTileBytes, kTileStride);
    Dot::template add<1, 4, 7>();
    if constexpr (kPrefetch) prefetch_tile(b + kStepBytes);
    interleaved.run_some();
    if constexpr (kBoth) {
      _tile_loadd(5, lower, kTileStride);
      Dot::template add<2, 5, 6>();
      Dot::template add<3, 5, 7>();
    }
    if constexpr (kPrefetch) prefetch_tile(b + kStepBytes + kTileBytes);
    upper += kTileBytes;
    lower += kTileBytes;
    b += kStepBytes;
  }
  _tile_stored(0, c, kSumStride);
  _tile_stored(1, c + 16, kSumStride);
  if constexpr (kBoth) {
    _tile_stored(2, below, kSumStride);
    _tile_stored(3, below + 16, kSumStride);
  }
}

/// Multiplies many rows over `count` steps from `step` on, whose columns begin at `panel`. `next` is as in GemmTask.
template <class Dot, bool kPrefetch, class Epilogue>
MILLRACE_INLINE void tile_rows(const GemmTask& task, int64_t step, int64_t count, const char* panel, const char* next,
                               bool fresh, Epilogue finish) {
  const int squares = (task.rows + kTileHeight - 1) / kSquareRows;  // the last 32-row block may have 17 rows
  PrefetchCursor ahead;
  if (next != nullptr && squares > 0) {
    // A block is 4 lines per step; each 32-row block walks it twice in 16 steps each.
    ahead = {next, next + static_cast<size_t>(count) * (kStepTilesBytes / kTileSteps), (32 + squares - 1) / squares};
  }
  configure_gemm(kTileHeight);
  int row = 0;
  for (; task.rows - row > kTileHeight; row += kSquareRows) {
    const bool whole = task.rows - row >= kSquareRows;
    if (!whole) {
      finish.run_rest();
      configure_square(task.rows - row);
    }
    const char* const upper = lhs_tiles(task, row, step).data;
    const char* const lower = lhs_tiles(task, row + kTileHeight, step).data;
    for (int column = 0; column < kPanelColumns; column += 32) {
      tile_square<Dot, kStepTilesBytes, true, kPrefetch>(upper, lower,
                                                         panel + static_cast<size_t>(column / 16) * kTileBytes, count,
                                                         task.c + row * kPanelColumns + column, fresh, ahead, finish);
      if (whole) finish.finish_square(row, column);
    }
    if (!whole) finish.finish_row(row, task.rows - row);
  }
  finish.run_rest();
  if (row < task.rows) {
    configure_gemm(task.rows - row);
    float* const c = task.c + row * kPanelColumns;
    tile_row<Dot, false>(lhs_tiles(task, row, step), panel, count, c, fresh);
    finish.finish_row(row, task.rows - row);
  }
}

/// Runs a GEMM and applies `Epilogue` to the sums after the last steps.
template <class Dot, class Epilogue, bool kMany>
MILLRACE_INLINE void blocked_rows(const GemmTask& task) {
  constexpr int64_t kSteps = kMany ? kSquareSteps : kLongSquareSteps;
  constexpr size_t kStepBytes = kStepTilesBytes / kTileSteps;
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  for (int64_t step = 0; step < task.steps; step += kSteps) {
    const int64_t count = task.steps - step < kSteps ? task.steps - step : kSteps;
    const char* block = panel + static_cast<size_t>(step) * kStepBytes;
    const char* next = step + count < task.steps ? block + static_cast<size_t>(count) * kStepBytes
                                                 : reinterpret_cast<const char*>(task.next);
    const bool fresh = step == 0 && !task.accumulate;
    if (task.completes && step + count == task.steps) {
      tile_rows<Dot, !kMany>(task, step, count, block, next, fresh, Epilogue(task));
    } else {
      tile_rows<Dot, !kMany>(task, step, count, block, next, fresh, NoEpilogue(task));
    }
  }
}

template <class Dot, class Epilogue>
MILLRACE_INLINE void gemm_by_tiles(const GemmTask& task) {
  if (task.rows <= kTileHeight) {
    configure_gemm(task.rows);
    tile_row<Dot, true>(lhs_tiles(task, 0, 0), reinterpret_cast<const char*>(task.panel), task.steps, task.c,
                        !task.accumulate);
    if (task.completes) Epilogue(task).finish_row(0, task.rows);
  } else if (task.rows < kManySquareRows) {
    blocked_rows<Dot, Epilogue, false>(task);
  } else {
    blocked_rows<Dot, Epilogue, true>(task);
  }
  _tile_release();
}

/// Calls a vector kernel with subnormal numbers flushed to zero, as tile instructions do.
MILLRACE_INLINE void flushing_subnormals(void (*kernel)(const GemmTask&), const GemmTask& task) {
  constexpr unsigned kFlush = 0x8040;
  asm volatile("" : "+r"(kernel));  // not to be inlined, so that no operation leaves it
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlush);
  kernel(task);
  _mm_setcsr(before);
}

/// Multiplies R rows by vectors, bit-identical to tiles. Per 16 steps it sums even and odd elements separately from
/// zero, then both, then adds that to the sums. One or two rows stream memory some percent faster this way.
template <int R>
void gemm_by_vectors(const GemmTask& task) {
  constexpr size_t kAhead = 8192;
  constexpr int kVecs = kPanelColumns / kLanes;
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  const auto* line = reinterpret_cast<const char*>(task.panel);
  Vec sum[R][kVecs] = {};
  for (int at = 0; task.accumulate && at < R * kVecs; ++at) sum[at / kVecs][at % kVecs] = load(task.c + at * kLanes);
  for (int64_t step = 0; step < task.steps; step += kTileSteps, lhs += kTileStride) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      Vec even[R] = {};
      Vec odd[R] = {};
#pragma clang loop unroll(disable)
      for (int i = 0; i < kTileSteps; ++i, line += 64) {
        __builtin_prefetch(line + kAhead, 0, kPrefetchToL2);
        const auto pairs = load_as<Bits>(line);
#pragma clang loop unroll(full)
        for (int r = 0; r < R; ++r) {
          const auto pair = reinterpret_cast<Bits>(splat(load_as<float>(lhs + r * task.lhs_stride + i * 4)));
          even[r] = fma(reinterpret_cast<Vec>(pair << 16), reinterpret_cast<Vec>(pairs << 16), even[r]);
          odd[r] = fma(reinterpret_cast<Vec>(pair & 0xFFFF0000u), reinterpret_cast<Vec>(pairs & 0xFFFF0000u), odd[r]);
        }
      }
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) sum[r][v] += even[r] + odd[r];
    }
  }
  for (int at = 0; at < R * kVecs; ++at) store(task.c + at * kLanes, sum[at / kVecs][at % kVecs]);
}

void gemm_amx(const GemmTask& task) {
  if (!task.tiled_lhs && task.rows == 1) return flushing_subnormals(gemm_by_vectors<1>, task);
  if (!task.tiled_lhs && task.rows == 2) return flushing_subnormals(gemm_by_vectors<2>, task);
  gemm_by_tiles<Bf16Dot, NoEpilogue>(task);
}

}  // namespace
}  // namespace millrace::cpu
