#pragma once

// Panels of packed weights times rows. Included only by kernels.cc.

#include "cpu/microkernel.h"

namespace millrace::cpu {
namespace {

/// Steps of a panel that stay in the first-level cache while a few tiles of rows pass over them.
constexpr int64_t kShortSteps = 64;
/// Steps that stay in the second level while many do.
constexpr int64_t kLongSteps = 1024;
constexpr int kFewRows = 24;
/// How far ahead of its use a streamed panel is asked for.
constexpr int64_t kPrefetchBytes = 4096;

/// Pairs of a bf16 panel that are widened at a time, and the bytes of 16 of its columns then: they stay in the first
/// level while many rows pass over them.
constexpr int64_t kWidenedPairs = 128;
constexpr size_t kWidenedBytes = 2 * kWidenedPairs * sizeof(Vec);

/// Whether a tile has all columns of a panel. Narrower ones read a part of each step: its lines fall into a part of
/// the first level's sets, and displace each other beyond kShortSteps.
constexpr bool kWideTiles = kTileVecs * kLanes == kPanelColumns;

/// Vectors of columns in a tile of R rows. Few rows leave registers for more columns, so that a panel is read in its
/// order.
template <int R>
constexpr int kProductVecs = kWideTiles || R == 1 ? 4
                             : 2 * R <= kTileRows ? 2
                                                  : 1;

/// Steps between two stores of the sums.
MILLRACE_INLINE int64_t product_block(const ProductTask& task) {
  if (task.rows == 1 || (kWideTiles && task.rows <= kTileRows)) return task.steps;
  return !kWideTiles || task.rows <= kFewRows ? kShortSteps : kLongSteps;
}

/// Adds to c [R, V * 16] the products of left rows with columns `panel_step` bytes apart from step to step.
template <class Format, int R, int V, int64_t kAhead>
MILLRACE_INLINE void product_columns(const char* left, size_t left_stride, const char* columns, size_t panel_step,
                                     int64_t steps, float* c, bool fresh) {
  Vec acc[R][V] = {};
  if (!fresh) load_tile(acc, c, kPanelColumns);
  for (int64_t step = 0; step < steps; ++step) {
    const char* right[V];
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      right[v] = columns + static_cast<size_t>(v) * kLanes * Format::kColumnStep;
      if constexpr (kAhead > 0) __builtin_prefetch(right[v] + kAhead);
    }
    Format::template step<R, V>(acc, left, left_stride, right);
    left += Format::kLeftStep;
    columns += panel_step;
  }
  store_tile(acc, c, kPanelColumns);
}

template <class Format, int R, bool kPrefetch>
void product_tile(const char* left, size_t left_stride, const char* panel, int64_t steps, float* c, bool fresh) {
  constexpr size_t kPanelStep = kPanelColumns * Format::kColumnStep;
  constexpr int kVecs = kProductVecs<R>;
  // Where several tiles share the panel's columns, the next block.
  constexpr auto kNear = kVecs * kLanes == kPanelColumns ? kPrefetchBytes : kShortSteps * int64_t{kPanelStep};
  for (int first = 0; first < kPanelColumns; first += kVecs * kLanes) {
    product_columns<Format, R, kVecs, kPrefetch ? kNear : 0>(left, left_stride,
                                                             panel + static_cast<size_t>(first) * Format::kColumnStep,
                                                             kPanelStep, steps, c + first, fresh);
  }
}

/// Pairs of a bf16 panel as f32 [4][2 * kWidenedPairs][16]; asks for as many pairs behind them.
MILLRACE_INLINE void widen_pairs(const char* panel, int64_t pairs, char* out) {
  constexpr size_t kStep = kPanelColumns * 4;
  constexpr size_t kVecBytes = sizeof(Vec);
  for (int64_t pair = 0; pair < pairs; ++pair, panel += kStep, out += 2 * kVecBytes) {
#pragma clang loop unroll(full)
    for (size_t v = 0; v < kPanelColumns / kLanes; ++v) {
      __builtin_prefetch(panel + pairs * static_cast<int64_t>(kStep) + v * kVecBytes);
      const Bits words = load_as<Bits>(panel + v * kVecBytes);
      store_as(out + v * kWidenedBytes, words << 16);
      store_as(out + v * kWidenedBytes + kVecBytes, words & 0xFFFF0000u);
    }
  }
}

/// Of a bf16 panel with f32 left rows, so many that it pays to widen a block of the panel once: the same sums.
template <class WideFormat>
void product_widened(const ProductTask& task) {
  alignas(64) char wide[kWidenedBytes * (kPanelColumns / kLanes)];
  const auto* left = reinterpret_cast<const char*>(task.left);
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  for (int64_t step = 0; step < task.steps; step += kWidenedPairs) {
    const int64_t pairs = task.steps - step < kWidenedPairs ? task.steps - step : kWidenedPairs;
    widen_pairs(panel + static_cast<size_t>(step) * kPanelColumns * 4, pairs, wide);
    for (int first = 0; first < kPanelColumns; first += kLanes) {
      for_row_tiles(task.rows, [&](auto rows, int row) {
        const char* rows_left = left + static_cast<size_t>(row) * task.left_stride + static_cast<size_t>(step) * 8;
        product_columns<WideFormat, decltype(rows)::kCount, 1, 0>(
            rows_left, task.left_stride, wide + static_cast<size_t>(first / kLanes) * kWidenedBytes, sizeof(Vec),
            2 * pairs, task.c + row * kPanelColumns + first, step == 0);
      });
    }
  }
}

/// Sums run over all steps in order whatever the blocking: a block starts from the sums that the one before it stored.
template <class Format>
void product(const ProductTask& task) {
  if constexpr (!kWideTiles && Format::kColumnStep < Format::kLeftStep) {
    if (task.rows > kFewRows) return product_widened<F32Format>(task);
  }
  const int64_t block = product_block(task);
  const auto* left = reinterpret_cast<const char*>(task.left);
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  for (int64_t step = 0; step < task.steps; step += block) {
    const int64_t count = task.steps - step < block ? task.steps - step : block;
    const char* a = left + static_cast<size_t>(step) * Format::kLeftStep;
    const char* b = panel + static_cast<size_t>(step) * kPanelColumns * Format::kColumnStep;
    for_row_tiles(task.rows, [&](auto rows, int row) {
      const char* tile_left = a + static_cast<size_t>(row) * task.left_stride;
      float* c = task.c + row * kPanelColumns;
      if (row == 0) {
        product_tile<Format, decltype(rows)::kCount, true>(tile_left, task.left_stride, b, count, c, step == 0);
      } else {
        product_tile<Format, decltype(rows)::kCount, false>(tile_left, task.left_stride, b, count, c, step == 0);
      }
    });
  }
}

}  // namespace
}  // namespace millrace::cpu
