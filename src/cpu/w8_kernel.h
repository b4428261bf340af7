#pragma once

// Products of panels of 8 bits with rows of f32: some steps are written out in f32 into scratch that stays in the
// cache, and multiplied by the kernels for that format, so that sums and their order are theirs. Included only by
// kernels.cc.

#include "cpu/product_kernel.h"

namespace millrace::cpu {
namespace {

typedef int8_t Bytes __attribute__((vector_size(16)));

/// Up to so many rows kShortSteps are written out at a time.
constexpr int kFewW8Rows = 24;
/// Steps that are for more rows.
constexpr int64_t kLongW8Steps = kW8ScratchSteps;

/// How far ahead of its use what is written out is asked for.
constexpr size_t kW8Ahead = kOfIntel ? kPrefetchBytes : 8192;

MILLRACE_INLINE Vec widen_bytes(const char* from) {
  return __builtin_convertvector(__builtin_convertvector(load_as<Bytes>(from), Ints), Vec);
}

MILLRACE_INLINE Vec group_scale(const char* group, int vec) {
  return widen_bf16(load_as<Halves>(group + vec * kLanes * 2));
}

/// A group of a panel as f32 [32][64].
MILLRACE_INLINE void expand_f32(const char* group, char* out) {
  constexpr int kVecs = kPanelColumns / kLanes;
  Vec scale[kVecs];
#pragma clang loop unroll(full)
  for (int v = 0; v < kVecs; ++v) scale[v] = group_scale(group, v);
  const char* values = group + kW8ScaleBytes;
  for (int step = 0; step < kW8GroupElements; ++step, values += kPanelColumns, out += kPanelColumns * 4) {
    __builtin_prefetch(values + kW8Ahead);
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      store_as(out + v * kLanes * 4, widen_bytes(values + v * kLanes) * scale[v]);
    }
  }
}

/// What a tile of R rows over the scratch asks for: a part of what is written out later on, while the memory would be
/// idle. expand_f32() asks for what comes before that.
template <int R>
MILLRACE_INLINE Prefetch ahead_of_w8_tile(const ProductTask& task, const char* groups, int row) {
  constexpr int64_t kGroupSteps = kW8GroupElements;
  constexpr size_t kBlockBytes = kShortSteps / kGroupSteps * kW8GroupBytes;
  constexpr size_t kAhead = (kW8Ahead / kBlockBytes + 2) * kBlockBytes;
  const Share share = share_of_tile(kBlockBytes, kW8GroupBytes / kGroupSteps, row, R, task.rows);
  return {AskFor::kNextBlock, groups + kAhead + share.first, share.step};
}

void product_w8_f32(const ProductTask& task) {
  constexpr int64_t kGroupSteps = kW8GroupElements;
  static_assert(kShortSteps % kGroupSteps == 0 && kShortSteps <= kW8ScratchSteps);
  const bool few = task.rows <= kFewW8Rows;
  const int64_t block = !kWideTiles || few ? kShortSteps : kLongW8Steps;
  const auto* left = reinterpret_cast<const char*>(task.left);
  auto* scratch = reinterpret_cast<char*>(task.scratch);
  for (int64_t step = 0; step < task.steps; step += block) {
    const int64_t count = task.steps - step < block ? task.steps - step : block;
    const char* groups = reinterpret_cast<const char*>(task.panel) + step / kGroupSteps * kW8GroupBytes;
    for (int64_t at = 0; at < count; at += kGroupSteps) {
      expand_f32(groups + at / kGroupSteps * kW8GroupBytes, scratch + at * kPanelColumns * 4);
    }
    const char* a = left + static_cast<size_t>(step) * F32Format::kLeftStep;
    for_row_tiles(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* tile_left = a + static_cast<size_t>(row) * task.left_stride;
      float* c = task.c + row * kPanelColumns;
      if (kWideTiles && few) {
        product_tile<F32Format, R, AskFor::kNextBlock>(tile_left, task.left_stride, scratch, count, c, step == 0,
                                                       ahead_of_w8_tile<R>(task, groups, row));
      } else {
        product_tile<F32Format, R, AskFor::kNothing>(tile_left, task.left_stride, scratch, count, c, step == 0, {});
      }
    });
  }
}

}  // namespace
}  // namespace millrace::cpu
