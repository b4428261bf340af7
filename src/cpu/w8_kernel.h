#pragma once

// GEMM of 8-bit panels with f32 rows. Some steps are dequantized to f32 in scratch that stays in the cache and
// multiplied by the f32 kernels. Sums and their order are therefore those of f32. Included only by kernels.cc.

#include "cpu/gemm_kernel.h"

namespace millrace::cpu {
namespace {

typedef int8_t Bytes __attribute__((vector_size(16)));

/// Rows up to which kL1Steps are dequantized at a time.
constexpr int kMaxShortBlockW8Rows = 24;
/// Steps dequantized at a time for more rows.
constexpr int64_t kL2W8Steps = kW8ScratchSteps;

/// Bytes by which dequantized data is prefetched ahead of its use.
constexpr size_t kW8PrefetchDistance = kTargetsIntel ? kPrefetchDistance : 8192;

MILLRACE_INLINE Vec widen_bytes(const char* from) {
  return __builtin_convertvector(__builtin_convertvector(load_as<Bytes>(from), Ints), Vec);
}

MILLRACE_INLINE Vec group_scale(const char* group, int vec) {
  return widen_bf16(load_as<Halves>(group + vec * kLanes * 2));
}

/// Dequantizes a group of a panel to f32 [32][64].
MILLRACE_INLINE void dequantize_group_f32(const char* group, char* out) {
  constexpr int kVecs = kPanelColumns / kLanes;
  Vec scale[kVecs];
#pragma clang loop unroll(full)
  for (int v = 0; v < kVecs; ++v) scale[v] = group_scale(group, v);
  const char* values = group + kW8ScaleBytes;
  for (int step = 0; step < kW8GroupElements; ++step, values += kPanelColumns, out += kPanelColumns * 4) {
    __builtin_prefetch(values + kW8PrefetchDistance);
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      store_as(out + v * kLanes * 4, widen_bytes(values + v * kLanes) * scale[v]);
    }
  }
}

/// Prefetches, for a tile of R rows over the scratch, a part of what is dequantized later, while memory would idle.
/// dequantize_group_f32() prefetches the data before that.
template <int R>
MILLRACE_INLINE Prefetch prefetch_of_w8_tile(const GemmTask& task, const char* groups, int row) {
  constexpr int64_t kGroupSteps = kW8GroupElements;
  constexpr size_t kBlockBytes = kL1Steps / kGroupSteps * kW8GroupBytes;
  constexpr size_t kAhead = (kW8PrefetchDistance / kBlockBytes + 2) * kBlockBytes;
  const PrefetchShare share = prefetch_share_of_tile(kBlockBytes, kW8GroupBytes / kGroupSteps, row, R, task.rows);
  return {PrefetchKind::kNextBlock, groups + kAhead + share.first, share.step};
}

void gemm_w8_f32(const GemmTask& task) {
  constexpr int64_t kGroupSteps = kW8GroupElements;
  static_assert(kL1Steps % kGroupSteps == 0 && kL1Steps <= kW8ScratchSteps);
  const bool few = task.rows <= kMaxShortBlockW8Rows;
  const int64_t block = !kWideTiles || few ? kL1Steps : kL2W8Steps;
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  auto* scratch = reinterpret_cast<char*>(task.scratch);
  for (int64_t step = 0; step < task.steps; step += block) {
    const int64_t count = task.steps - step < block ? task.steps - step : block;
    const char* groups = reinterpret_cast<const char*>(task.panel) + step / kGroupSteps * kW8GroupBytes;
    for (int64_t at = 0; at < count; at += kGroupSteps) {
      dequantize_group_f32(groups + at / kGroupSteps * kW8GroupBytes, scratch + at * kPanelColumns * 4);
    }
    const char* a = lhs + static_cast<size_t>(step) * F32Format::kLhsStep;
    for_row_tiles(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* pack_tiled_lhs = a + static_cast<size_t>(row) * task.lhs_stride;
      float* c = task.c + row * kPanelColumns;
      if (kWideTiles && few) {
        gemm_tile<F32Format, R, PrefetchKind::kNextBlock>(pack_tiled_lhs, task.lhs_stride, scratch, count, c, step == 0,
                                                          prefetch_of_w8_tile<R>(task, groups, row));
      } else {
        gemm_tile<F32Format, R, PrefetchKind::kNone>(pack_tiled_lhs, task.lhs_stride, scratch, count, c, step == 0, {});
      }
    });
  }
}

}  // namespace
}  // namespace millrace::cpu
