#pragma once

// GEMM of channel panels on tile registers (AMX). An 8-bit tile has as many bytes as a bf16 tile and twice the summed
// elements. Included only by kernels.cc.

#include "cpu/amx_kernel.h"
#include "cpu/w8a8_channel_kernel.h"

namespace millrace::cpu {
namespace {

struct Int8Dot {
  template <int kSum, int kLeft, int kColumns>
  static MILLRACE_INLINE void add() {
    _tile_dpbsud(kSum, kLeft, kColumns);
  }
};

/// Scales the sums of a 32-row block some rows at a time while tiles multiply the next block.
class ScaleEpilogue {
 public:
  explicit MILLRACE_INLINE ScaleEpilogue(const GemmTask& task) : task_(task) {}

  MILLRACE_INLINE void finish_square(int row, int column) {
    run_rest();
    row_ = row;
    end_ = row + kSquareRows;
    column_ = column;
  }
  MILLRACE_INLINE void run_some() {
    if (row_ >= end_) return;
    scale<2>(row_, kRowsAtOnce, column_);
    row_ += kRowsAtOnce;
  }
  MILLRACE_INLINE void run_rest() {
    while (row_ < end_) run_some();
  }
  MILLRACE_INLINE void finish_row(int row, int rows) { scale<kPanelColumns / kLanes>(row, rows, 0); }

 private:
  static constexpr int kRowsAtOnce = 4;
  static_assert(kSquareRows % kRowsAtOnce == 0);

  template <int kVecs>
  MILLRACE_INLINE void scale(int row, int rows, int column) {
    scale_sums<kVecs>(task_.c + row * kPanelColumns + column, rows, task_.quant_params + row,
                      task_.column_scales != nullptr ? task_.column_scales + column : nullptr);
  }

  const GemmTask& task_;
  int row_ = 0;
  int end_ = 0;
  int column_ = 0;
};

/// Multiplies one row by vectors. A line of a tile holds 4 elements of 16 columns.
void one_row_is_channel_format(const GemmTask& task) {
  constexpr size_t kAhead = 8192;
  constexpr int kVecs = kPanelColumns / kLanes;
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  const auto* line = reinterpret_cast<const char*>(task.panel);
  Ints sum[kVecs] = {};
  for (int64_t step = 0; step < task.steps; step += kTileSteps, lhs += kTileStride) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
#pragma clang loop unroll_count(4)
      for (int i = 0; i < kTileSteps; ++i, line += 64) {
        __builtin_prefetch(line + kAhead, 0, kPrefetchToL2);
        sum[v] = Int8Step(line).add_dot(sum[v], lhs + i * kInt8Depth);
      }
    }
  }
  for (int v = 0; v < kVecs; ++v) store_as(task.c + v * kLanes, sum[v]);
  scale_sums<kVecs>(task.c, 1, task.quant_params, task.column_scales);
}

void gemm_w8a8_channel_amx(const GemmTask& task) {
  if (!task.tiled_lhs && task.rows == 1) return one_row_is_channel_format(task);
  gemm_by_tiles<Int8Dot, ScaleEpilogue>(task);
}

}  // namespace
}  // namespace millrace::cpu
