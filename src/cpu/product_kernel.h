#pragma once

// Panels of packed weights times rows. Included only by kernels.cc.

#include <type_traits>

#include "cpu/microkernel.h"

namespace millrace::cpu {
namespace {

/// Steps of a panel that stay in the first-level cache while tiles of rows pass over them. Narrow tiles read a part of
/// each step, whose lines fall into a part of that cache's sets: more steps would displace each other.
constexpr int64_t kShortSteps = kWideTiles || kOfIntel ? 32 : 64;
/// Steps that stay in the second level while many wide tiles do.
constexpr int64_t kLongSteps = 1024;
/// Up to so many rows reading a panel may take as long as computing with it.
#if defined(__AVX512BF16__)
constexpr int kFewRows = 48;
#else
constexpr int kFewRows = 24;
#endif
/// How many blocks before its use a part of the next one is asked for.
constexpr size_t kBlocksAhead = kWideTiles ? 2 : 1;
/// Whether one tile of so many rows asks for nothing while it streams a panel: a core that reads ahead by itself, as
/// Zen 4, is disturbed by it. One row leaves it too little time for that, and many rows enough for either.
MILLRACE_INLINE bool streams_unasked(int rows) {
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
  return rows >= 2 && rows <= 4;
#else
  (void)rows;
  return false;
#endif
}

/// Vectors of columns in a tile of R rows. Few rows leave registers for more columns, so that a panel is read in its
/// order.
template <int R>
constexpr int kProductVecs = kWideTiles || R == 1  ? 4
                             : R == 2 && !kOfIntel ? 2
                                                   : 1;

/// Steps of one turn of the loop: a narrow tile has few instructions per step, of which those that move on count.
template <int R>
constexpr int kStepsAtOnce = !kWideTiles && R > 2 ? 2 : 1;

/// Steps between two stores of the sums.
MILLRACE_INLINE int64_t product_block(const ProductTask& task) {
  if (task.rows == 1 || (kWideTiles && task.rows <= kTileRows)) return task.steps;
  return !kWideTiles || task.rows <= kFewRows ? kShortSteps : kLongSteps;
}

/// What a tile asks memory for while it is computed.
enum class AskFor : uint8_t {
  kNothing,
  kSoon,       ///< what it comes to itself, shortly
  kNextBlock,  ///< its share of what all tiles come to after this block
};

/// Where that lies: a line for each of its vectors of columns from `at`, which moves on by `step` bytes with every
/// step.
struct Prefetch {
  AskFor what = AskFor::kNothing;
  const char* at = nullptr;
  size_t step = 0;
};

/// Whether the tiles of so many rows share the reading of a panel, block by block: not where there is but one, nor
/// where reading takes no time beside computing, as for more than `few` rows.
MILLRACE_INLINE bool tiles_share_reading(int rows, int tile_rows, int few) {
  return !kWideTiles || (rows > tile_rows && rows <= few);
}

/// Calls body with `what` as a compile-time constant.
template <class Body>
MILLRACE_INLINE void with_ask(AskFor what, Body&& body) {
  switch (what) {
    case AskFor::kNothing: return body(std::integral_constant<AskFor, AskFor::kNothing>{});
    case AskFor::kSoon: return body(std::integral_constant<AskFor, AskFor::kSoon>{});
    case AskFor::kNextBlock: return body(std::integral_constant<AskFor, AskFor::kNextBlock>{});
  }
}

/// Adds to c [R, V * 16] the products of left rows with columns `panel_step` bytes apart from step to step.
template <class Format, int R, int V, AskFor kAsk>
MILLRACE_INLINE void product_columns(const char* left, size_t left_stride, const char* columns, size_t panel_step,
                                     int64_t steps, float* c, bool fresh, Prefetch ahead) {
  const RowStrides strides(left_stride);
  typename Format::Sums acc[R][V] = {};
  if (!fresh) load_tile(acc, c, kPanelColumns);
#pragma clang loop unroll_count(kStepsAtOnce<R>)
  for (int64_t step = 0; step < steps; ++step) {
    const char* right[V];
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      const size_t at = static_cast<size_t>(v) * kLanes * Format::kColumnStep;
      right[v] = columns + at;
      if constexpr (kAsk == AskFor::kSoon) __builtin_prefetch(ahead.at + at, 0, Format::kStreamLevel);
      if constexpr (kAsk == AskFor::kNextBlock) __builtin_prefetch(ahead.at + at, 0, kIntoSecondLevel);
    }
    Format::template step<R, V>(acc, left, strides, right);
    left += Format::kLeftStep;
    columns += panel_step;
    if constexpr (kAsk != AskFor::kNothing) ahead.at += ahead.step;
  }
  store_tile(acc, c, kPanelColumns);
}

template <class Format, int R, AskFor kAsk>
void product_tile(const char* left, size_t left_stride, const char* panel, int64_t steps, float* c, bool fresh,
                  Prefetch ahead) {
  constexpr size_t kPanelStep = kPanelColumns * Format::kColumnStep;
  constexpr int kVecs = kProductVecs<R>;
  for (int first = 0; first < kPanelColumns; first += kVecs * kLanes) {
    const size_t at = static_cast<size_t>(first) * Format::kColumnStep;
    product_columns<Format, R, kVecs, kAsk>(left, left_stride, panel + at, kPanelStep, steps, c + first, fresh, ahead);
    ahead.at += static_cast<size_t>(steps) * ahead.step;
  }
}

/// Whether tiles of so many rows, more than `few`, ask for the next panel while they multiply this one: the first would
/// wait for all of it. Measured on Intel's processors alone.
MILLRACE_INLINE bool tiles_ask_for_next(const ProductTask& task, int few) {
  return kOfIntel && kWideTiles && task.rows > few && task.next != nullptr;
}

/// The share of the next panel of the tile at `row`, which has passed over so many steps of this one. A step of a panel
/// has `panel_step` bytes; a tile asks in steps of its own, each for `tile_step` bytes if it were the only one.
MILLRACE_INLINE Prefetch ahead_in_next(const ProductTask& task, size_t panel_step, size_t tile_step, int row,
                                       int tile_rows, size_t tile_steps_before) {
  const Share share = share_of_tile(static_cast<size_t>(task.steps) * panel_step, tile_step, row, tile_rows, task.rows);
  const auto* next = reinterpret_cast<const char*>(task.next);
  return {AskFor::kNextBlock, next + share.first + tile_steps_before * share.step, share.step};
}

/// What a tile of R rows asks for while a block of a panel passes. Where tiles share the reading, each asks for a part
/// of the next block: the first would wait for all of it while the memory were idle behind it. And in the order of
/// memory, which reads half as fast with 64 bytes of every 256.
template <class Format, int R>
MILLRACE_INLINE Prefetch ahead_of_tile(const ProductTask& task, const char* block, int row) {
  constexpr size_t kPanelStep = kPanelColumns * Format::kColumnStep;
  constexpr size_t kTileStep = kProductVecs<R> * kLanes * Format::kColumnStep;
  if (tiles_ask_for_next(task, kFewRows)) {
    const auto steps_before = static_cast<size_t>(block - reinterpret_cast<const char*>(task.panel)) / kPanelStep;
    return ahead_in_next(task, kPanelStep, kTileStep, row, R, steps_before);
  }
  if (kTileStep == kPanelStep && (task.rows == 1 || !tiles_share_reading(task.rows, kTileRows, kFewRows))) {
    if (row > 0 || streams_unasked(task.rows)) return {};
    return {AskFor::kSoon, block + kPrefetchBytes, kPanelStep};
  }
  constexpr size_t kBlockBytes = kShortSteps * kPanelStep;
  const Share share = share_of_tile(kBlockBytes, kTileStep, row, R, task.rows);
  return {AskFor::kNextBlock, block + kBlocksAhead * kBlockBytes + share.first, share.step};
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
      with_ask(ahead.what, [&](auto what) {
        product_tile<Format, R, what()>(tile_left, task.left_stride, b, count, c, step == 0, ahead);
      });
    });
  }
}

}  // namespace
}  // namespace millrace::cpu
