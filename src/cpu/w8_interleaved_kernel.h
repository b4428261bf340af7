#pragma once

// GEMM of 8-bit panels with bf16 rows. An int8 or an E4M3 is exact in bf16, so a group's sum is one of such numbers
// times inputs in f32. The group sums times their scales are added up. Nothing is rounded beyond the format. Included
// only by kernels.cc.

#include "cpu/gemm_kernel.h"
#include "cpu/interleaved_codes.h"
#include "cpu/w8_kernel.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)

namespace millrace::cpu {
namespace {

constexpr int kW8GroupSteps = kW8GroupElements / Bf16Format::kDepth;
constexpr int kPanelVecs = kPanelColumns / kLanes;

#if !defined(__AMX_BF16__)

/// Panels of int8 with a bf16 scale per 32 inputs.
struct W8Panels {
  static constexpr bool kHasGroupsOf32 = true;
  static constexpr const Bf16Bytes& kTable = kIntegerBytes;
  static constexpr int kScaleBytes = kW8ScaleBytes;
  using GroupSteps = std::integral_constant<int, kW8GroupSteps>;

  static MILLRACE_INLINE GroupSteps group_steps(const GemmTask&) { return {}; }
  static MILLRACE_INLINE GroupSteps shortened(GroupSteps steps, int64_t) { return steps; }
  static MILLRACE_INLINE Vec scale(const char* scales, int vec) { return group_scale(scales, vec); }
};

/// Panels of E4M3 with an f32 scale per 32, 64 or 128 inputs. The last group may be shorter.
struct Fp8Panels {
  static constexpr bool kHasGroupsOf32 = false;
  static constexpr const Bf16Bytes& kTable = kE4M3Bytes;
  static constexpr int kScaleBytes = kFp8ScaleBytes;
  using GroupSteps = int;

  static MILLRACE_INLINE int group_steps(const GemmTask& task) { return task.group_elements / Bf16Format::kDepth; }
  static MILLRACE_INLINE int shortened(int steps, int64_t left) {
    return left < steps ? static_cast<int>(left) : steps;
  }
  static MILLRACE_INLINE Vec scale(const char* scales, int vec) { return load_as<Vec>(scales + vec * kLanes * 4); }
};

/// Returns the bytes of some steps of a panel that begin with a group.
template <class Panels>
MILLRACE_INLINE int64_t interleaved_bytes(typename Panels::GroupSteps group_steps, int64_t steps) {
  return steps * kInterleavedStepBytes + (steps + group_steps - 1) / group_steps * Panels::kScaleBytes;
}

/// Computes sum += LHS rows · two bf16 vectors, row by row. lhs(r) is the address of a row's pair of inputs.
template <int R, int V, class Lhs>
MILLRACE_INLINE void add_dots(Vec (&sum)[R][V], const Lhs& lhs, const __m512bh (&b)[V]) {
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
    const Bits a = broadcast_word(lhs(r));
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      sum[r][v] = reinterpret_cast<Vec>(
          _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum[r][v]), reinterpret_cast<__m512bh>(a), b[v]));
    }
  }
}

/// Rows of a single tile. Inputs of more rows would not lie in the first-level cache side by side: where their number
/// is a multiple of 2048, all rows map to the same lines.
constexpr int kInterleavedTileRows = 10;
/// Rows of the tiles that share steps. With groups of 32 a tile has totals besides a group's sums.
template <class Panels>
constexpr int kSharedTileRows = Panels::kHasGroupsOf32 ? 6 : 8;
/// Vectors of columns in a tile. With many rows there are registers for half of a panel.
template <int R>
constexpr int kInterleavedTileVecs = R <= 4 ? 4 : 2;
/// Bytes by which a single tile prefetches. Its first pass over a group advances twice as fast as its prefetches.
template <int V>
constexpr int64_t kInterleavedPrefetch = V == kPanelVecs ? kPrefetchDistance : 2 * kPrefetchDistance;

/// Columns that several tiles multiply one after the other, and their vectors and bytes per step once dequantized.
constexpr int kSharedVecs = 2;
constexpr int kSharedStepBytes = kSharedVecs * 64;
/// Steps that several tiles multiply one after the other, so that half of them stays in the first-level cache.
constexpr int64_t kSharedSteps = 64;
static_assert(kSharedSteps * kSharedStepBytes <= static_cast<int64_t>(kW8ScratchBytes));
constexpr int64_t kMaxGroupSteps = kMaxFp8Group / Bf16Format::kDepth;
static_assert(kSharedSteps % kMaxGroupSteps == 0);

/// Where a tile takes steps from. The first of several tiles keeps what it dequantizes for the others.
enum class StepSource : uint8_t { kCodes, kCodesToKeep, kKept };

/// Adds a group's sums times their scales to totals. The scales begin with those of the first vector.
template <class Panels, int R, int V>
MILLRACE_INLINE void scale_sums(const Vec (&sum)[R][V], const char* scales, Vec (&total)[R][V]) {
#pragma clang loop unroll(full)
  for (int v = 0; v < V; ++v) {
    const Vec scale = Panels::scale(scales, v);
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r) total[r][v] = fma(sum[r][v], scale, total[r][v]);
  }
}

/// Adds a group's sums times their scales to c, in memory.
template <class Panels, int R, int V>
MILLRACE_INLINE void add_scaled_sums(const Vec (&sum)[R][V], const char* scales, float* c) {
#pragma clang loop unroll(full)
  for (int v = 0; v < V; ++v) {
    const Vec scale = Panels::scale(scales, v);
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r) {
      float* const at = c + r * kPanelColumns + v * kLanes;
      store(at, fma(sum[r][v], scale, load(at)));
    }
  }
}

/// Sums the products of R rows with a group of `count` steps of V vectors of columns, and passes them to finish(sums).
template <class Panels, StepSource kSource, int R, int V, class Count, class Finish>
MILLRACE_INLINE void gemm_interleaved_group(const char* lhs, size_t lhs_stride, const char* steps, Count count,
                                            char* kept, Prefetch& ahead, const Finish& finish) {
  constexpr int kNearRows = 6;
  const RowStrides strides(lhs_stride);
  const char* far = lhs + kNearRows * lhs_stride;
  const auto prefetch_next = [&]() __attribute__((always_inline)) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; v += 2)
      __builtin_prefetch(ahead.at + v / 2 * 64, 0, kSource == StepSource::kCodes ? kPrefetchToL1 : kPrefetchToL2);
    ahead.at += ahead.step;
  };
  Vec sum[R][V] = {};
  for (int step = 0; step < count; ++step) {
    prefetch_next();
    __m512bh b[V];
#pragma clang loop unroll(full)
    for (int v = 0; v < V; v += 2) {
      if constexpr (kSource == StepSource::kKept) {
        b[v] = load_as<__m512bh>(kept + v * 64);
        b[v + 1] = load_as<__m512bh>(kept + (v + 1) * 64);
      } else {
        dequantize_interleaved<Panels::kTable>(steps + v / 2 * 64, b[v], b[v + 1]);
      }
      if constexpr (kSource == StepSource::kCodesToKeep) {
        store_as(kept + v * 64, b[v]);
        store_as(kept + (v + 1) * 64, b[v + 1]);
      }
    }
    add_dots(sum, [&](int r) { return r < kNearRows ? lhs + strides.to(r) : far + strides.to(r - kNearRows); }, b);
    lhs += Bf16Format::kLhsStep;
    far += Bf16Format::kLhsStep;
    steps += kInterleavedStepBytes;
    kept += V * 64;
  }
  // The bytes of the scales count too, so that no line is skipped.
  for (int i = 0; kSource == StepSource::kCodes && i < Panels::kScaleBytes; i += kInterleavedStepBytes) prefetch_next();
  asm volatile("" ::: "memory");  // what is loaded below would take the sums' registers above
  finish(sum);
}

/// Returns the codes of a group from a vector of columns on, and the scales of these.
template <class Panels>
MILLRACE_INLINE const char* codes_of_group(const char* group, int first) {
  return group + Panels::kScaleBytes + first / 2 * 64;
}
template <class Panels>
MILLRACE_INLINE const char* scales_of_group(const char* group, int first) {
  return group + first * (Panels::kScaleBytes / kPanelVecs);
}

/// Multiplies a panel by the rows of a single tile. It may pass over a group twice, but prefetches in the order of
/// memory.
template <class Panels, int R>
void gemm_interleaved_tile(const GemmTask& task, typename Panels::GroupSteps group_steps) {
  constexpr int V = kInterleavedTileVecs<R>;
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  const auto* group = reinterpret_cast<const char*>(task.panel);
  Prefetch ahead{PrefetchKind::kSamePanel, group + kInterleavedPrefetch<V>, V / 2 * 64};
  for (int64_t step = 0; step < task.steps; step += group_steps) {
    const auto count = Panels::shortened(group_steps, task.steps - step);
#pragma clang loop unroll(disable)
    for (int first = 0; first < kPanelVecs; first += V) {
      gemm_interleaved_group<Panels, StepSource::kCodes, R, V>(
          lhs, task.lhs_stride, codes_of_group<Panels>(group, first), count, nullptr, ahead,
          [&](const auto& sum) __attribute__((always_inline)) {
            add_scaled_sums<Panels>(sum, scales_of_group<Panels>(group, first), task.c + first * kLanes);
          });
    }
    lhs += count * static_cast<int64_t>(Bf16Format::kLhsStep);
    group += Panels::kScaleBytes + count * kInterleavedStepBytes;
  }
}

/// Multiplies `steps` steps of kSharedVecs vectors of columns from `first` on by R rows.
template <class Panels, StepSource kSource, int R>
void gemm_shared_tile(const char* lhs, size_t lhs_stride, const char* group, int64_t steps,
                      typename Panels::GroupSteps group_steps, int first, float* c, char* kept, Prefetch ahead) {
  constexpr bool kHasTotals = Panels::kHasGroupsOf32 && kSource == StepSource::kKept;
  Vec total[R][kSharedVecs];
  if constexpr (kHasTotals) load_tile(total, c, kPanelColumns);
  for (int64_t step = 0; step < steps; step += group_steps) {
    const auto count = Panels::shortened(group_steps, steps - step);
    gemm_interleaved_group<Panels, kSource, R, kSharedVecs>(
        lhs, lhs_stride, codes_of_group<Panels>(group, first), count, kept, ahead,
        [&](const auto& sum) __attribute__((always_inline)) {
          const char* const scales = scales_of_group<Panels>(group, first);
          if constexpr (kHasTotals) {
            scale_sums<Panels>(sum, scales, total);
          } else {
            add_scaled_sums<Panels>(sum, scales, c);
          }
        });
    lhs += count * static_cast<int64_t>(Bf16Format::kLhsStep);
    group += Panels::kScaleBytes + count * kInterleavedStepBytes;
    kept += count * kSharedStepBytes;
  }
  if constexpr (kHasTotals) store_tile(total, c, kPanelColumns);
}

/// Multiplies some steps by all rows. The first tile dequantizes them, which takes no time compared with its dots. All
/// tiles prefetch a part of the next steps.
template <class Panels>
void gemm_shared(const GemmTask& task, const char* lhs, const char* panel, int64_t steps,
                 typename Panels::GroupSteps group_steps) {
  constexpr int kMaxTileRows = kSharedTileRows<Panels>;
  constexpr int kMinTileRows = kMaxTileRows / 2 + 1;
  // Two tiles of kMaxTileRows + 2 rows have as many.
  static_assert(kMaxTileRows % 2 == 0 && kInterleavedTileRows > kMaxTileRows);
  auto* const kept = reinterpret_cast<char*>(task.scratch);
  const auto bytes = static_cast<size_t>(interleaved_bytes<Panels>(group_steps, steps));
  const size_t pass_bytes = bytes * kSharedVecs / kPanelVecs;
  for (int first = 0; first < kPanelVecs; first += kSharedVecs) {
    const char* const next = panel + bytes + static_cast<size_t>(first / kSharedVecs) * pass_bytes;
    for_row_tiles<kMaxTileRows, kMinTileRows>(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const PrefetchShare share =
          prefetch_share_of_tile(pass_bytes, pass_bytes / static_cast<size_t>(steps), row, R, task.rows);
      const auto tile = row == 0 ? gemm_shared_tile<Panels, StepSource::kCodesToKeep, R>
                                 : gemm_shared_tile<Panels, StepSource::kKept, R>;
      tile(lhs + static_cast<size_t>(row) * task.lhs_stride, task.lhs_stride, panel, steps, group_steps, first,
           task.c + row * kPanelColumns + first * kLanes, kept,
           {PrefetchKind::kNextBlock, next + share.first, share.step});
    });
  }
}

/// Runs a GEMM. A total is the fma of each group's sum and scale in order, whatever the tiles.
template <class Panels>
void gemm_interleaved(const GemmTask& task) {
  const auto group_steps = Panels::group_steps(task);
  for (int64_t i = 0; i < int64_t{task.rows} * kPanelColumns; i += kLanes) store(task.c + i, Vec{});
  if (task.rows <= kInterleavedTileRows) {
    return with_rows<kInterleavedTileRows>(
        task.rows, [&](auto rows) { gemm_interleaved_tile<Panels, decltype(rows)::kCount>(task, group_steps); });
  }
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  for (int64_t step = 0; step < task.steps; step += kSharedSteps) {
    const int64_t count = task.steps - step < kSharedSteps ? task.steps - step : kSharedSteps;
    gemm_shared<Panels>(task, lhs, panel, count, group_steps);
    lhs += count * static_cast<int64_t>(Bf16Format::kLhsStep);
    panel += interleaved_bytes<Panels>(group_steps, count);
  }
}

#endif

}  // namespace
}  // namespace millrace::cpu

#endif
