#pragma once

// GEMM of panels of E4M3 with bf16 rows on tile registers (AMX). Weights are dequantized: a code times its scale,
// rounded to bf16. Sums are those of bf16 panels with such weights. Included only by kernels.cc.

#include "cpu/amx_kernel.h"
#include "cpu/w8_interleaved_kernel.h"

namespace millrace::cpu {
namespace {

constexpr int64_t kFp8StepBytes = kInterleavedStepBytes;

/// Walks over the tiles of 16 steps of a panel of E4M3.
class Fp8Cursor {
 public:
  MILLRACE_INLINE explicit Fp8Cursor(const GemmTask& task)
      : at_(reinterpret_cast<const char*>(task.panel)), group_tiles_(task.group_elements / kW8GroupElements) {}

  /// Takes 16 steps: sets their scales and returns their codes.
  MILLRACE_INLINE const char* take(Vec (&scale)[kPanelVecs]) {
    if (left_ == 0) {
      left_ = group_tiles_;
      scales_ = at_;
      at_ += kFp8ScaleBytes;
    }
    --left_;
    for (int v = 0; v < kPanelVecs; ++v) scale[v] = load_as<Vec>(scales_ + v * kLanes * 4);
    const char* const codes = at_;
    at_ += kTileSteps * kFp8StepBytes;
    return codes;
  }

 private:
  const char* at_;
  const char* scales_ = nullptr;
  int group_tiles_;
  int left_ = 0;
};

/// Returns pairs of bf16 times the scales of their columns, rounded to bf16.
MILLRACE_INLINE Bits scaled_pairs(__m512bh pairs, Vec scale) {
  const auto bits = reinterpret_cast<Bits>(pairs);
  const Halves even = narrow_bf16(reinterpret_cast<Vec>(bits << 16) * scale);
  const Halves odd = narrow_bf16(reinterpret_cast<Vec>(bits & 0xFFFF0000u) * scale);
  return __builtin_convertvector(even, Bits) | __builtin_convertvector(odd, Bits) << 16;
}

/// Dequantizes a step of 64 columns.
MILLRACE_INLINE void dequantize_fp8_step(const char* codes, const Vec (&scale)[kPanelVecs], Bits (&pairs)[kPanelVecs]) {
  constexpr int64_t kAhead = 8192;
#pragma clang loop unroll(full)
  for (int v = 0; v < kPanelVecs; v += 2) {
    __builtin_prefetch(codes + v / 2 * 64 + kAhead, 0, kPrefetchToL2);
    __m512bh first;
    __m512bh second;
    dequantize_interleaved<kE4M3Bytes>(codes + v / 2 * 64, first, second);
    pairs[v] = scaled_pairs(first, scale[v]);
    pairs[v + 1] = scaled_pairs(second, scale[v + 1]);
  }
}

/// Dequantizes 16 steps to four tiles.
MILLRACE_INLINE void dequantize_fp8_tiles(Fp8Cursor& cursor, char* out) {
  Vec scale[kPanelVecs];
  const char* codes = cursor.take(scale);
  for (int step = 0; step < kTileSteps; ++step, codes += kFp8StepBytes, out += kTileStride) {
    Bits pairs[kPanelVecs];
    dequantize_fp8_step(codes, scale, pairs);
#pragma clang loop unroll(full)
    for (int v = 0; v < kPanelVecs; ++v) store_as(out + v * kTileBytes, pairs[v]);
  }
}

/// Multiplies one row by vectors, bit-identical to tiles: see gemm_by_vectors().
void one_row_fp8_amx(const GemmTask& task) {
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  Fp8Cursor cursor(task);
  Vec sum[kPanelVecs] = {};
  for (int v = 0; task.accumulate && v < kPanelVecs; ++v) sum[v] = load(task.c + v * kLanes);
  for (int64_t step = 0; step < task.steps; step += kTileSteps) {
    Vec scale[kPanelVecs];
    Vec even[kPanelVecs] = {};
    Vec odd[kPanelVecs] = {};
    const char* codes = cursor.take(scale);
    for (int i = 0; i < kTileSteps; ++i, codes += kFp8StepBytes, lhs += Bf16Format::kLhsStep) {
      Bits pairs[kPanelVecs];
      dequantize_fp8_step(codes, scale, pairs);
      const auto pair = reinterpret_cast<Bits>(splat(load_as<float>(lhs)));
#pragma clang loop unroll(full)
      for (int v = 0; v < kPanelVecs; ++v) {
        even[v] = fma(reinterpret_cast<Vec>(pair << 16), reinterpret_cast<Vec>(pairs[v] << 16), even[v]);
        odd[v] = fma(reinterpret_cast<Vec>(pair & 0xFFFF0000u), reinterpret_cast<Vec>(pairs[v] & 0xFFFF0000u), odd[v]);
      }
    }
#pragma clang loop unroll(full)
    for (int v = 0; v < kPanelVecs; ++v) sum[v] += even[v] + odd[v];
  }
  for (int v = 0; v < kPanelVecs; ++v) store(task.c + v * kLanes, sum[v]);
}

/// Multiplies rows by tiles. Steps are dequantized in blocks: of few rows so that they stay in the first-level cache.
void some_rows_fp8_amx(const GemmTask& task) {
  const int64_t block = task.rows <= kTileHeight ? 4 * kTileSteps : kW8ScratchSteps;
  Fp8Cursor cursor(task);
  auto* const scratch = reinterpret_cast<char*>(task.scratch);
  for (int64_t first = 0; first < task.steps; first += block) {
    const int64_t count = task.steps - first < block ? task.steps - first : block;
    for (int64_t step = 0; step < count; step += kTileSteps)
      dequantize_fp8_tiles(cursor, scratch + static_cast<size_t>(step / kTileSteps) * kStepTilesBytes);
    tile_rows<Bf16Dot, false>(task, first, count, scratch, nullptr, first == 0 && !task.accumulate, NoEpilogue(task));
  }
  _tile_release();
}

void gemm_fp8_amx(const GemmTask& task) {
  flushing_subnormals(task.rows == 1 && !task.tiled_lhs ? one_row_fp8_amx : some_rows_fp8_amx, task);
}

}  // namespace
}  // namespace millrace::cpu
