#pragma once

// GEMM of 8-bit panels (int8 or E4M3) with f32 rows. Some steps are dequantized to f32 in scratch that stays in the
// cache and multiplied by the f32 kernels. Sums and their order are therefore those of f32. Included only by
// kernels.cc.

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

/// Converts 16 E4M3 to f32. The codes of NaN become 480: groups of FP8 with one have a NaN scale, and factors of 4-bit
/// weights have none. The exponent of f32 is larger by 120.
MILLRACE_INLINE Vec widen_e4m3(const char* from) {
  typedef uint8_t Codes __attribute__((vector_size(16)));
  const Bits codes = __builtin_convertvector(load_as<Codes>(from), Bits);
  return reinterpret_cast<Vec>((codes & 0x80u) << 24 | (codes & 0x7Fu) << 20) * splat(0x1p120f);
}

constexpr int64_t kF32UnitSteps = kW8GroupElements;  // that share scales in any 8-bit panel

/// A unit of 32 steps of a panel.
struct F32Unit {
  const char* scales;
  const char* values;
};

/// Panels of int8 with a bf16 scale per 32 inputs.
struct W8F32Panels {
  static MILLRACE_INLINE F32Unit unit(const GemmTask& task, int64_t step) {
    const char* group = reinterpret_cast<const char*>(task.panel) + step / kF32UnitSteps * kW8GroupBytes;
    return {group, group + kW8ScaleBytes};
  }
  static MILLRACE_INLINE size_t unit_bytes(const GemmTask&) { return kW8GroupBytes; }
  static MILLRACE_INLINE Vec scale(const char* scales, int vec) { return group_scale(scales, vec); }
  static MILLRACE_INLINE Vec widen(const char* from) { return widen_bytes(from); }
};

/// Panels of E4M3 with an f32 scale per 32, 64 or 128 inputs.
struct Fp8F32Panels {
  static MILLRACE_INLINE F32Unit unit(const GemmTask& task, int64_t step) {
    const int64_t steps = task.group_elements;
    const char* group =
        reinterpret_cast<const char*>(task.panel) + step / steps * (kFp8ScaleBytes + steps * kPanelColumns);
    return {group, group + kFp8ScaleBytes + step % steps * kPanelColumns};
  }
  /// Returns the average bytes of a unit with its share of the scales.
  static MILLRACE_INLINE size_t unit_bytes(const GemmTask& task) {
    return static_cast<size_t>(kF32UnitSteps) * kPanelColumns +
           static_cast<size_t>(kFp8ScaleBytes * kF32UnitSteps / task.group_elements);
  }
  static MILLRACE_INLINE Vec scale(const char* scales, int vec) { return load_as<Vec>(scales + vec * kLanes * 4); }
  static MILLRACE_INLINE Vec widen(const char* from) { return widen_e4m3(from); }
};

/// Dequantizes a unit of a panel to f32 [32][64].
template <class Panels>
MILLRACE_INLINE void dequantize_unit_f32(F32Unit unit, char* out) {
  constexpr int kVecs = kPanelColumns / kLanes;
  Vec scale[kVecs];
#pragma clang loop unroll(full)
  for (int v = 0; v < kVecs; ++v) scale[v] = Panels::scale(unit.scales, v);
  const char* values = unit.values;
  for (int step = 0; step < kF32UnitSteps; ++step, values += kPanelColumns, out += kPanelColumns * 4) {
    __builtin_prefetch(values + kW8PrefetchDistance);
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      store_as(out + v * kLanes * 4, Panels::widen(values + v * kLanes) * scale[v]);
    }
  }
}

/// Prefetches, for a tile of R rows over the scratch, a part of what is dequantized later, while memory would idle.
/// dequantize_unit_f32() prefetches the data before that.
template <int R>
MILLRACE_INLINE Prefetch prefetch_of_w8_tile(const GemmTask& task, size_t unit_bytes, const char* block, int row) {
  const size_t block_bytes = kL1Steps / kF32UnitSteps * unit_bytes;
  const size_t distance = (kW8PrefetchDistance / block_bytes + 2) * block_bytes;
  const PrefetchShare share = prefetch_share_of_tile(block_bytes, unit_bytes / kF32UnitSteps, row, R, task.rows);
  return {PrefetchKind::kNextBlock, block + distance + share.first, share.step};
}

template <class Panels>
void gemm_8_bits_f32(const GemmTask& task) {
  static_assert(kL1Steps % kF32UnitSteps == 0 && kL1Steps <= kW8ScratchSteps);
  const bool few = task.rows <= kMaxShortBlockW8Rows;
  const int64_t block = !kWideTiles || few ? kL1Steps : kL2W8Steps;
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  auto* scratch = reinterpret_cast<char*>(task.scratch);
  const size_t unit_bytes = Panels::unit_bytes(task);
  for (int64_t step = 0; step < task.steps; step += block) {
    const int64_t count = task.steps - step < block ? task.steps - step : block;
    for (int64_t at = 0; at < count; at += kF32UnitSteps) {
      dequantize_unit_f32<Panels>(Panels::unit(task, step + at), scratch + at * kPanelColumns * 4);
    }
    const char* a = lhs + static_cast<size_t>(step) * F32Format::kLhsStep;
    for_row_tiles(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* pack_tiled_lhs = a + static_cast<size_t>(row) * task.lhs_stride;
      float* c = task.c + row * kPanelColumns;
      if (kWideTiles && few) {
        gemm_tile<F32Format, R, PrefetchKind::kNextBlock>(
            pack_tiled_lhs, task.lhs_stride, scratch, count, c, step == 0,
            prefetch_of_w8_tile<R>(task, unit_bytes, Panels::unit(task, step).values, row));
      } else {
        gemm_tile<F32Format, R, PrefetchKind::kNone>(pack_tiled_lhs, task.lhs_stride, scratch, count, c, step == 0, {});
      }
    });
  }
}

}  // namespace
}  // namespace millrace::cpu
