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

template <class Format, int R, bool kPrefetch>
void product_tile(const char* left, size_t left_stride, const char* panel, int64_t steps, float* c, bool fresh) {
  constexpr size_t kPanelStep = kPanelColumns * Format::kColumnStep;
  for (int first = 0; first < kPanelColumns; first += kTileVecs * kLanes) {
    Vec acc[R][kTileVecs] = {};
    if (!fresh) load_tile(acc, c + first, kPanelColumns);
    const char* a = left;
    const char* b = panel + static_cast<size_t>(first) * Format::kColumnStep;
    for (int64_t step = 0; step < steps; ++step) {
      const char* right[kTileVecs];
#pragma clang loop unroll(full)
      for (int v = 0; v < kTileVecs; ++v) {
        right[v] = b + static_cast<size_t>(v) * kLanes * Format::kColumnStep;
        if constexpr (kPrefetch) __builtin_prefetch(right[v] + kPrefetchBytes);
      }
      Format::template step<R, kTileVecs>(acc, a, left_stride, right);
      a += Format::kLeftStep;
      b += kPanelStep;
    }
    store_tile(acc, c + first, kPanelColumns);
  }
}

/// Sums run over all steps in order whatever the blocking: a block starts from the sums that the one before it stored.
template <class Format>
void product(const ProductTask& task) {
  const int64_t block = task.rows <= kTileRows ? task.steps : task.rows <= kFewRows ? kShortSteps : kLongSteps;
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
