#pragma once

// GEMM of packed panels with rows. Included only by kernels.cc.

#include <type_traits>

#include "cpu/microkernel.h"

namespace millrace::cpu {
namespace {

/// Steps of a panel that stay in the first-level cache while row tiles pass over them. Narrow tiles read a part of each
/// step, whose lines map to some of the cache's sets; more steps would evict each other.
constexpr int64_t kL1Steps = kWideTiles || kTargetsIntel ? 32 : 64;
/// Steps that stay in the second-level cache while many wide tiles pass over them.
constexpr int64_t kL2Steps = 1024;
/// Rows up to which reading a panel may take as long as computing with it.
#if defined(__AVX512BF16__)
constexpr int kMaxMemoryBoundRows = 48;
#else
constexpr int kMaxMemoryBoundRows = 24;
#endif
/// Blocks by which a part of a later block is prefetched ahead of its use.
constexpr size_t kPrefetchBlocks = kWideTiles ? 2 : 1;
/// Returns whether a single tile of `rows` rows leaves the prefetching of a panel to the hardware. Software prefetches
/// disturb a core that prefetches well by itself, such as Zen 4. One row leaves the hardware too little time, and many
/// rows leave enough for either.
MILLRACE_INLINE bool relies_on_hardware_prefetch(int rows) {
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
  return rows >= 2 && rows <= 4;
#else
  (void)rows;
  return false;
#endif
}

/// Vectors of columns in a tile of R rows. Few rows leave registers for more columns, so that a panel is read in order.
template <int R>
constexpr int kGemmVecs = kWideTiles || R == 1       ? 4
                          : R == 2 && !kTargetsIntel ? 2
                                                     : 1;

/// Steps per loop iteration. Narrow tiles have few instructions per step, so the loop's own instructions matter.
template <int R>
constexpr int kStepUnroll = !kWideTiles && R > 2 ? 2 : 1;

/// Returns the steps between two stores of the sums.
MILLRACE_INLINE int64_t gemm_k_block(const GemmTask& task) {
  if (task.rows == 1 || (kWideTiles && task.rows <= kTileRows)) return task.steps;
  return !kWideTiles || task.rows <= kMaxMemoryBoundRows ? kL1Steps : kL2Steps;
}

/// The memory that a tile prefetches while it is computed.
enum class PrefetchKind : uint8_t {
  kNone,
  kSamePanel,  ///< the steps that it will read itself soon
  kNextBlock,  ///< its share of the next block, which all tiles will read
};

/// The address of the prefetches: one line for each vector of columns from `at` on. `at` advances by `step` bytes with
/// every step.
struct Prefetch {
  PrefetchKind what = PrefetchKind::kNone;
  const char* at = nullptr;
  size_t step = 0;
};

/// Returns whether the tiles of `rows` rows share the prefetching of a panel, block by block. A single tile does not,
/// nor more than `few` rows, for which reading takes little time compared with computing.
MILLRACE_INLINE bool tiles_share_prefetch(int rows, int tile_rows, int few) {
  return !kWideTiles || (rows > tile_rows && rows <= few);
}

/// Calls body with `what` as a compile-time constant.
template <class Body>
MILLRACE_INLINE void with_prefetch_kind(PrefetchKind what, Body&& body) {
  switch (what) {
    case PrefetchKind::kNone: return body(std::integral_constant<PrefetchKind, PrefetchKind::kNone>{});
    case PrefetchKind::kSamePanel: return body(std::integral_constant<PrefetchKind, PrefetchKind::kSamePanel>{});
    case PrefetchKind::kNextBlock: return body(std::integral_constant<PrefetchKind, PrefetchKind::kNextBlock>{});
  }
}

/// Adds to c [R, V * 16] the GEMM of LHS rows with columns that are `panel_step` bytes apart per step.
template <class Format, int R, int V, PrefetchKind kPrefetchKind>
MILLRACE_INLINE void gemm_columns(const char* lhs, size_t lhs_stride, const char* columns, size_t panel_step,
                                  int64_t steps, float* c, bool fresh, Prefetch ahead) {
  const RowStrides strides(lhs_stride);
  typename Format::Sums acc[R][V] = {};
  if (!fresh) load_tile(acc, c, kPanelColumns);
#pragma clang loop unroll_count(kStepUnroll<R>)
  for (int64_t step = 0; step < steps; ++step) {
    const char* right[V];
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      const size_t at = static_cast<size_t>(v) * kLanes * Format::kColumnStep;
      right[v] = columns + at;
      if constexpr (kPrefetchKind == PrefetchKind::kSamePanel)
        __builtin_prefetch(ahead.at + at, 0, Format::kStreamPrefetchLevel);
      if constexpr (kPrefetchKind == PrefetchKind::kNextBlock) __builtin_prefetch(ahead.at + at, 0, kPrefetchToL2);
    }
    Format::template step<R, V>(acc, lhs, strides, right);
    lhs += Format::kLhsStep;
    columns += panel_step;
    if constexpr (kPrefetchKind != PrefetchKind::kNone) ahead.at += ahead.step;
  }
  store_tile(acc, c, kPanelColumns);
}

template <class Format, int R, PrefetchKind kPrefetchKind>
void gemm_tile(const char* lhs, size_t lhs_stride, const char* panel, int64_t steps, float* c, bool fresh,
               Prefetch ahead) {
  constexpr size_t kPanelStep = kPanelColumns * Format::kColumnStep;
  constexpr int kVecs = kGemmVecs<R>;
  for (int first = 0; first < kPanelColumns; first += kVecs * kLanes) {
    const size_t at = static_cast<size_t>(first) * Format::kColumnStep;
    gemm_columns<Format, R, kVecs, kPrefetchKind>(lhs, lhs_stride, panel + at, kPanelStep, steps, c + first, fresh,
                                                  ahead);
    ahead.at += static_cast<size_t>(steps) * ahead.step;
  }
}

/// Returns whether tiles of more than `few` rows prefetch the next panel while they multiply this one. Otherwise the
/// first tile would wait for all of it. Measured on Intel's processors only.
MILLRACE_INLINE bool tiles_prefetch_next_panel(const GemmTask& task, int few) {
  return kTargetsIntel && kWideTiles && task.rows > few && task.next != nullptr;
}

/// Returns the share of the next panel for the tile at `row` after some steps of this panel. A step of a panel has
/// `panel_step` bytes. A tile prefetches in steps of its own, `tile_step` bytes each if it were the only tile.
MILLRACE_INLINE Prefetch prefetch_of_next_panel(const GemmTask& task, size_t panel_step, size_t tile_step, int row,
                                                int tile_rows, size_t tile_steps_before) {
  const PrefetchShare share =
      prefetch_share_of_tile(static_cast<size_t>(task.steps) * panel_step, tile_step, row, tile_rows, task.rows);
  const auto* next = reinterpret_cast<const char*>(task.next);
  return {PrefetchKind::kNextBlock, next + share.first + tile_steps_before * share.step, share.step};
}

/// Returns what a tile of R rows prefetches during a block of a panel. Where tiles share the reading, each prefetches a
/// part of the next block. Otherwise the first tile would stall, and memory would idle afterwards. Prefetches follow
/// memory order: 64 bytes of every 256 are read at half the speed.
template <class Format, int R>
MILLRACE_INLINE Prefetch prefetch_of_tile(const GemmTask& task, const char* block, int row) {
  constexpr size_t kPanelStep = kPanelColumns * Format::kColumnStep;
  constexpr size_t kTileStep = kGemmVecs<R> * kLanes * Format::kColumnStep;
  if (tiles_prefetch_next_panel(task, kMaxMemoryBoundRows)) {
    const auto steps_before = static_cast<size_t>(block - reinterpret_cast<const char*>(task.panel)) / kPanelStep;
    return prefetch_of_next_panel(task, kPanelStep, kTileStep, row, R, steps_before);
  }
  if (kTileStep == kPanelStep && (task.rows == 1 || !tiles_share_prefetch(task.rows, kTileRows, kMaxMemoryBoundRows))) {
    if (row > 0 || relies_on_hardware_prefetch(task.rows)) return {};
    return {PrefetchKind::kSamePanel, block + kPrefetchDistance, kPanelStep};
  }
  constexpr size_t kBlockBytes = kL1Steps * kPanelStep;
  const PrefetchShare share = prefetch_share_of_tile(kBlockBytes, kTileStep, row, R, task.rows);
  return {PrefetchKind::kNextBlock, block + kPrefetchBlocks * kBlockBytes + share.first, share.step};
}

/// Runs a GEMM whose sums cover all steps in order whatever the blocking. A block continues from the sums that the
/// previous block stored.
template <class Format>
void gemm(const GemmTask& task) {
  const int64_t block = gemm_k_block(task);
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  for (int64_t step = 0; step < task.steps; step += block) {
    const int64_t count = task.steps - step < block ? task.steps - step : block;
    const char* a = lhs + static_cast<size_t>(step) * Format::kLhsStep;
    const char* b = panel + static_cast<size_t>(step) * kPanelColumns * Format::kColumnStep;
    for_row_tiles(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* pack_tiled_lhs = a + static_cast<size_t>(row) * task.lhs_stride;
      float* c = task.c + row * kPanelColumns;
      const Prefetch ahead = prefetch_of_tile<Format, R>(task, b, row);
      with_prefetch_kind(ahead.what, [&](auto what) {
        gemm_tile<Format, R, what()>(pack_tiled_lhs, task.lhs_stride, b, count, c, step == 0, ahead);
      });
    });
  }
}

}  // namespace
}  // namespace millrace::cpu
