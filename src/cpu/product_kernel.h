#pragma once

// Panels of packed weights times rows. Included only by kernels.cc.

#include "cpu/microkernel.h"

namespace millrace::cpu {
namespace {

/// Steps of a panel that stay in the first-level cache while tiles of rows pass over them. Narrow tiles read a part of
/// each step, whose lines fall into a part of that cache's sets: more steps would displace each other.
constexpr int64_t kShortSteps = 64;
/// Steps that stay in the second level while many wide tiles do.
constexpr int64_t kLongSteps = 1024;
constexpr int kFewRows = 24;
/// How far ahead of its use a streamed panel is asked for.
constexpr int64_t kPrefetchBytes = 4096;

/// Vectors of columns in a tile of R rows. Few rows leave registers for more columns, so that a panel is read in its
/// order.
template <int R>
constexpr int kProductVecs = kWideTiles || R == 1 ? 4
                             : R == 2             ? 2
                                                  : 1;

/// Steps of one turn of the loop: a narrow tile has few instructions per step, of which those that move on count.
template <int R>
constexpr int kStepsAtOnce = !kWideTiles && R > 2 ? 2 : 1;

/// Steps between two stores of the sums.
MILLRACE_INLINE int64_t product_block(const ProductTask& task) {
  if (task.rows == 1 || (kWideTiles && task.rows <= kTileRows)) return task.steps;
  return !kWideTiles || task.rows <= kFewRows ? kShortSteps : kLongSteps;
}

/// What is asked for while a tile is computed: a line for each of its vectors of columns from `at`, which moves on by
/// `step` bytes with every step; 0: nothing.
struct Prefetch {
  const char* at = nullptr;
  size_t step = 0;
};

/// Adds to c [R, V * 16] the products of left rows with columns `panel_step` bytes apart from step to step.
template <class Format, int R, int V, bool kAhead>
MILLRACE_INLINE void product_columns(const char* left, size_t left_stride, const char* columns, size_t panel_step,
                                     int64_t steps, float* c, bool fresh, Prefetch ahead) {
  const RowStrides strides(left_stride);
  Vec acc[R][V] = {};
  if (!fresh) load_tile(acc, c, kPanelColumns);
#pragma clang loop unroll_count(kStepsAtOnce<R>)
  for (int64_t step = 0; step < steps; ++step) {
    const char* right[V];
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      const size_t at = static_cast<size_t>(v) * kLanes * Format::kColumnStep;
      right[v] = columns + at;
      if constexpr (kAhead) __builtin_prefetch(ahead.at + at);
    }
    Format::template step<R, V>(acc, left, strides, right);
    left += Format::kLeftStep;
    columns += panel_step;
    if constexpr (kAhead) ahead.at += ahead.step;
  }
  store_tile(acc, c, kPanelColumns);
}

template <class Format, int R, bool kAhead>
void product_tile(const char* left, size_t left_stride, const char* panel, int64_t steps, float* c, bool fresh,
                  Prefetch ahead) {
  constexpr size_t kPanelStep = kPanelColumns * Format::kColumnStep;
  constexpr int kVecs = kProductVecs<R>;
  for (int first = 0; first < kPanelColumns; first += kVecs * kLanes) {
    const size_t at = static_cast<size_t>(first) * Format::kColumnStep;
    product_columns<Format, R, kVecs, kAhead>(left, left_stride, panel + at, kPanelStep, steps, c + first, fresh,
                                              ahead);
    ahead.at += static_cast<size_t>(steps) * ahead.step;
  }
}

/// What a tile of R rows asks for while a block of a panel passes: where it has all columns, what comes shortly.
/// Otherwise a part of the next block, and in the order of memory: with 64 bytes of every 256 it reads half as fast.
template <class Format, int R>
MILLRACE_INLINE Prefetch ahead_of_tile(const ProductTask& task, const char* block, int row) {
  constexpr size_t kPanelStep = kPanelColumns * Format::kColumnStep;
  constexpr size_t kTileStep = kProductVecs<R> * kLanes * Format::kColumnStep;
  if constexpr (kTileStep == kPanelStep) {
    return row == 0 ? Prefetch{block + kPrefetchBytes, kPanelStep} : Prefetch{};
  }
  constexpr size_t kBlockBytes = kShortSteps * kPanelStep;
  const Share share = share_of_tile(kBlockBytes, kTileStep, row, R, task.rows);
  return {block + kBlockBytes + share.first, share.step};
}

/// Sums run over all steps in order whatever the blocking: a block starts from the sums that the one before it stored.
template <class Format>
void product(const ProductTask& task) {
  const int64_t block = product_block(task);
  const auto* left = reinterpret_cast<const char*>(task.left);
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  for (int64_t step = 0; step < task.steps; step += block) {
    const int64_t count = task.steps - step < block ? task.steps - step : block;
    const char* a = left + static_cast<size_t>(step) * Format::kLeftStep;
    const char* b = panel + static_cast<size_t>(step) * kPanelColumns * Format::kColumnStep;
    for_row_tiles(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* tile_left = a + static_cast<size_t>(row) * task.left_stride;
      float* c = task.c + row * kPanelColumns;
      const Prefetch ahead = ahead_of_tile<Format, R>(task, b, row);
      if (ahead.step > 0) {
        product_tile<Format, R, true>(tile_left, task.left_stride, b, count, c, step == 0, ahead);
      } else {
        product_tile<Format, R, false>(tile_left, task.left_stride, b, count, c, step == 0, {});
      }
    });
  }
}

}  // namespace
}  // namespace millrace::cpu
