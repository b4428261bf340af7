#pragma once

// GEMM of 8-bit panels with bf16 rows. An int8 or an E4M3 is exact in bf16, so a group's sum is one of such numbers
// times inputs in f32. The group sums times their scales are added up. Nothing is rounded beyond the format. Two table
// look-ups convert bytes to bf16. Included only by kernels.cc.

#include "cpu/gemm_kernel.h"
#include "cpu/w8_kernel.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)

namespace millrace::cpu {
namespace {

constexpr int kW8GroupSteps = kW8GroupElements / Bf16Format::kDepth;
constexpr int kPanelVecs = kPanelColumns / kLanes;

/// The low and the high bytes of the bf16 numbers of 128 magnitudes.
struct Bf16Bytes {
  alignas(64) uint8_t low[128] = {};
  alignas(64) uint8_t high[128] = {};

  /// Sets a number to value · 2^exponent; `value` is 0 to 127.
  constexpr void set(int at, int value, int exponent) {
    if (value == 0) return;
    int highest = 0;
    while (value >> (highest + 1) != 0) ++highest;
    const int bits = (127 + exponent + highest) << 7 | ((value << (7 - highest)) & 0x7F);
    low[at] = static_cast<uint8_t>(bits & 0xFF);
    high[at] = static_cast<uint8_t>(bits >> 8);
  }
};
constexpr Bf16Bytes kIntegerBytes = [] {
  Bf16Bytes bytes;
  for (int value = 0; value < 128; ++value) bytes.set(value, value, 0);
  return bytes;
}();
/// The codes of NaN stand for 480 here: their scale is NaN.
constexpr Bf16Bytes kE4M3Bytes = [] {
  Bf16Bytes bytes;
  for (int code = 0; code < 128; ++code) bytes.set(code, (code < 8 ? 0 : 8) + code % 8, (code < 8 ? 1 : code / 8) - 10);
  return bytes;
}();

/// Converts 64 bytes of a step of an interleaved panel to two vectors of bf16.
template <const Bf16Bytes& kTable>
MILLRACE_INLINE void dequantize_interleaved(const char* from, __m512bh& first, __m512bh& second) {
  const auto table = [](const uint8_t* bytes) __attribute__((always_inline)) { return load_as<__m512i>(bytes); };
  constexpr int kOrWithSign = 0xF8;  // a | (b & c)
  const auto bytes = load_as<__m512i>(from);
  const __m512i low = _mm512_permutex2var_epi8(table(kTable.low), bytes, table(kTable.low + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(table(kTable.high), bytes, table(kTable.high + 64));
  const __m512i high =
      _mm512_ternarylogic_epi32(magnitude, bytes, _mm512_set1_epi8(static_cast<char>(0x80)), kOrWithSign);
  first = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi8(low, high));
  second = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi8(low, high));
}

constexpr int kInterleavedStepBytes = kPanelColumns * 2;

#if !defined(__AMX_BF16__)

/// Panels of int8 with a bf16 scale per 32 inputs.
struct W8Panels {
  static constexpr const Bf16Bytes& kTable = kIntegerBytes;
  static constexpr int kScaleBytes = kW8ScaleBytes;
  static constexpr bool kHasLongGroups = false;
  using GroupSteps = std::integral_constant<int, kW8GroupSteps>;

  static MILLRACE_INLINE GroupSteps group_steps(const GemmTask&) { return {}; }
  static MILLRACE_INLINE GroupSteps shortened(GroupSteps steps, int64_t) { return steps; }
  static MILLRACE_INLINE Vec scale(const char* scales, int vec) { return group_scale(scales, vec); }
};

/// Panels of E4M3 with an f32 scale per 32, 64 or 128 inputs. The last group may be shorter.
struct Fp8Panels {
  static constexpr const Bf16Bytes& kTable = kE4M3Bytes;
  static constexpr int kScaleBytes = kFp8ScaleBytes;
  static constexpr bool kHasLongGroups = true;
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
    const Bits a = Bits{} + load_as<uint32_t>(lhs(r));
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      sum[r][v] = reinterpret_cast<Vec>(
          _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum[r][v]), reinterpret_cast<__m512bh>(a), b[v]));
    }
  }
}

constexpr int kDequantizedStepBytes = kPanelColumns * static_cast<int>(Bf16Format::kColumnStep);

/// Rows up to which one tile dequantizes what it reads. For more rows, groups are dequantized once.
constexpr int kInterleavedTileRows = 12;
/// Vectors of columns in such a tile. With many rows it dequantizes less often, so it takes fewer columns.
template <int R>
constexpr int kInterleavedTileVecs = R <= 4 ? 4 : 2;
/// Rows of a tile over dequantized steps. With short groups it has room for the totals in addition to a group's sums.
template <class Panels>
constexpr int kDequantizedTileRows = Panels::kHasLongGroups ? kTileRows : 3;
/// Steps that are dequantized at a time, 256 bytes each.
constexpr int64_t kDequantizedSteps = 64;
static_assert(kDequantizedSteps <= kW8ScratchSteps);
constexpr int64_t kMaxGroupSteps = kMaxFp8Group / Bf16Format::kDepth;
static_assert(kDequantizedSteps % kMaxGroupSteps == 0);

/// Adds a group's sums times their scales to c. The scales begin with those of the first vector.
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

/// Adds to c [R, V * 16] the GEMM of LHS rows with a group of `count` steps that is dequantized as it is read.
template <class Panels, int R, int V, class Count>
MILLRACE_INLINE void gemm_interleaved_group(const char* lhs, size_t lhs_stride, const char* steps, Count count,
                                            const char* scales, float* c) {
  constexpr int kNearRows = 6;
  const RowStrides strides(lhs_stride);
  const char* far = lhs + kNearRows * lhs_stride;
  const auto prefetch_next = [&]() __attribute__((always_inline)) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; v += 2) __builtin_prefetch(steps + v / 2 * 64 + kPrefetchDistance, 0, kPrefetchToL1);
  };
  Vec sum[R][V] = {};
  for (int step = 0; step < count; ++step) {
    prefetch_next();
    __m512bh b[V];
#pragma clang loop unroll(full)
    for (int v = 0; v < V; v += 2) dequantize_interleaved<Panels::kTable>(steps + v / 2 * 64, b[v], b[v + 1]);
    add_dots(sum, [&](int r) { return r < kNearRows ? lhs + strides.to(r) : far + strides.to(r - kNearRows); }, b);
    lhs += Bf16Format::kLhsStep;
    far += Bf16Format::kLhsStep;
    steps += kInterleavedStepBytes;
  }
  // The bytes of the scales count too, so that no line is skipped.
  for (int i = 0; i < Panels::kScaleBytes; i += kInterleavedStepBytes, steps += kInterleavedStepBytes) prefetch_next();
  asm volatile("" ::: "memory");  // what is loaded below would take the sums' registers above
  add_scaled_sums<Panels>(sum, scales, c);
}

template <class Panels, int R>
void gemm_interleaved_tile(const char* lhs, size_t lhs_stride, const char* panel, int64_t steps,
                           typename Panels::GroupSteps group_steps, float* c) {
  constexpr int V = kInterleavedTileVecs<R>;
  for (int64_t step = 0; step < steps; step += group_steps) {
    const auto count = Panels::shortened(group_steps, steps - step);
#pragma clang loop unroll(disable)
    for (int first = 0; first < kPanelVecs; first += V) {
      gemm_interleaved_group<Panels, R, V>(lhs, lhs_stride, panel + Panels::kScaleBytes + first / 2 * 64, count,
                                           panel + first * (Panels::kScaleBytes / kPanelVecs), c + first * kLanes);
    }
    lhs += count * static_cast<int64_t>(Bf16Format::kLhsStep);
    panel += Panels::kScaleBytes + count * kInterleavedStepBytes;
  }
}

/// Computes sum += LHS rows · `count` dequantized steps, which are contiguous.
template <int R, class Count>
MILLRACE_INLINE void add_dequantized(const char* lhs, RowStrides strides, const char* steps, Count count,
                                     Vec (&sum)[R][kPanelVecs], Prefetch& ahead) {
  for (int step = 0; step < count; ++step) {
    __builtin_prefetch(ahead.at, 0, kPrefetchToL2);
    ahead.at += ahead.step;
    __m512bh b[kPanelVecs];
#pragma clang loop unroll(full)
    for (int v = 0; v < kPanelVecs; ++v) b[v] = load_as<__m512bh>(steps + v * 64);
    add_dots(sum, [&](int r) { return lhs + strides.to(r); }, b);
    lhs += Bf16Format::kLhsStep;
    steps += kDequantizedStepBytes;
  }
}

/// Adds to c [R, 64] the GEMM with groups whose dequantized steps are contiguous.
template <class Panels, int R>
void gemm_dequantized_tile(const char* lhs, size_t lhs_stride, const char* panel, const char* dequantized,
                           int64_t steps, typename Panels::GroupSteps group_steps, float* c, Prefetch ahead) {
  const RowStrides strides(lhs_stride);
  Vec total[R][kPanelVecs];
  if constexpr (!Panels::kHasLongGroups) load_tile(total, c, kPanelColumns);
  for (int64_t step = 0; step < steps; step += group_steps) {
    const auto count = Panels::shortened(group_steps, steps - step);
    Vec sum[R][kPanelVecs] = {};
    add_dequantized(lhs, strides, dequantized, count, sum, ahead);
    if constexpr (Panels::kHasLongGroups) {
      add_scaled_sums<Panels>(sum, panel, c);
    } else {
#pragma clang loop unroll(full)
      for (int v = 0; v < kPanelVecs; ++v) {
        const Vec scale = Panels::scale(panel, v);
#pragma clang loop unroll(full)
        for (int r = 0; r < R; ++r) total[r][v] = fma(sum[r][v], scale, total[r][v]);
      }
    }
    lhs += count * static_cast<int64_t>(Bf16Format::kLhsStep);
    dequantized += count * kDequantizedStepBytes;
    panel += Panels::kScaleBytes + count * kInterleavedStepBytes;
  }
  if constexpr (!Panels::kHasLongGroups) store_tile(total, c, kPanelColumns);
}

template <class Panels>
MILLRACE_INLINE void dequantize_steps(const char* panel, int64_t steps, typename Panels::GroupSteps group_steps,
                                      char* out) {
  for (int64_t step = 0; step < steps; step += group_steps) {
    const auto count = Panels::shortened(group_steps, steps - step);
    panel += Panels::kScaleBytes;
    for (int i = 0; i < count * kPanelVecs / 2; ++i, panel += 64, out += 128) {
      __builtin_prefetch(panel + kPrefetchDistance, 0, kPrefetchToL1);
      __m512bh first;
      __m512bh second;
      dequantize_interleaved<Panels::kTable>(panel, first, second);
      store_as(out, first);
      store_as(out + 64, second);
    }
  }
}

/// Multiplies some steps, which are dequantized once, by all rows. Each tile prefetches a part of the next steps, since
/// memory would idle between two dequantizations.
template <class Panels>
void gemm_dequantized(const GemmTask& task, const char* lhs, const char* panel, int64_t steps,
                      typename Panels::GroupSteps group_steps) {
  auto* const scratch = reinterpret_cast<char*>(task.scratch);
  dequantize_steps<Panels>(panel, steps, group_steps, scratch);
  const auto block_bytes = static_cast<size_t>(interleaved_bytes<Panels>(group_steps, steps));
  for_row_tiles<kDequantizedTileRows<Panels>>(task.rows, [&](auto rows, int row) {
    constexpr int R = decltype(rows)::kCount;
    const PrefetchShare share =
        prefetch_share_of_tile(block_bytes, block_bytes / static_cast<size_t>(steps), row, R, task.rows);
    gemm_dequantized_tile<Panels, R>(lhs + static_cast<size_t>(row) * task.lhs_stride, task.lhs_stride, panel, scratch,
                                     steps, group_steps, task.c + row * kPanelColumns,
                                     {PrefetchKind::kNextBlock, panel + block_bytes + share.first, share.step});
  });
}

/// Runs a GEMM. A total is the fma of each group's sum and scale in order, whatever the tiles.
template <class Panels>
void gemm_interleaved(const GemmTask& task) {
  const auto group_steps = Panels::group_steps(task);
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  for (int64_t i = 0; i < int64_t{task.rows} * kPanelColumns; i += kLanes) store(task.c + i, Vec{});
  if (task.rows <= kInterleavedTileRows) {
    return with_rows<kInterleavedTileRows>(task.rows, [&](auto rows) {
      gemm_interleaved_tile<Panels, decltype(rows)::kCount>(lhs, task.lhs_stride, panel, task.steps, group_steps,
                                                            task.c);
    });
  }
  for (int64_t step = 0; step < task.steps; step += kDequantizedSteps) {
    const int64_t count = task.steps - step < kDequantizedSteps ? task.steps - step : kDequantizedSteps;
    gemm_dequantized<Panels>(task, lhs, panel, count, group_steps);
    lhs += count * static_cast<int64_t>(Bf16Format::kLhsStep);
    panel += interleaved_bytes<Panels>(group_steps, count);
  }
}

#endif

}  // namespace
}  // namespace millrace::cpu

#endif
