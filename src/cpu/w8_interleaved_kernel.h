#pragma once

// GEMM of 8-bit panels with bf16 rows. An int8 is exact in bf16, so a group's sum is one of integers times inputs in
// f32. The group sums times their scales are added up. Nothing is rounded beyond the format. Two table look-ups convert
// bytes to bf16. Included only by kernels.cc.

#include "cpu/gemm_kernel.h"
#include "cpu/w8_kernel.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__) && !defined(__AMX_BF16__)

namespace millrace::cpu {
namespace {

constexpr int kW8GroupSteps = kW8GroupElements / Bf16Format::kDepth;
constexpr int kPanelVecs = kPanelColumns / kLanes;

/// The low and the high bytes of bf16(0 … 127).
struct Bf16Bytes {
  alignas(64) uint8_t low[128] = {};
  alignas(64) uint8_t high[128] = {};
  constexpr Bf16Bytes() {
    for (int value = 1; value < 128; ++value) {
      int exponent = 0;
      while (value >> (exponent + 1) != 0) ++exponent;
      const int bits = (127 + exponent) << 7 | ((value << (7 - exponent)) & 0x7F);
      low[value] = static_cast<uint8_t>(bits & 0xFF);
      high[value] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
constexpr Bf16Bytes kBf16Bytes;

/// Dequantizes 64 bytes of a step of an interleaved panel to two vectors of bf16.
MILLRACE_INLINE void dequantize_interleaved(const char* from, __m512bh& first, __m512bh& second) {
  const auto table = [](const uint8_t* bytes) __attribute__((always_inline)) { return load_as<__m512i>(bytes); };
  constexpr int kOrWithSign = 0xF8;  // a | (b & c)
  const auto bytes = load_as<__m512i>(from);
  const __m512i low = _mm512_permutex2var_epi8(table(kBf16Bytes.low), bytes, table(kBf16Bytes.low + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(table(kBf16Bytes.high), bytes, table(kBf16Bytes.high + 64));
  const __m512i high =
      _mm512_ternarylogic_epi32(magnitude, bytes, _mm512_set1_epi8(static_cast<char>(0x80)), kOrWithSign);
  first = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi8(low, high));
  second = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi8(low, high));
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

constexpr int kInterleavedStepBytes = kPanelColumns * 2;
constexpr int kDequantizedStepBytes = kPanelColumns * static_cast<int>(Bf16Format::kColumnStep);
constexpr int64_t kLhsGroupBytes = kW8GroupSteps * static_cast<int64_t>(Bf16Format::kLhsStep);

/// Rows of a tile that dequantizes what it reads. More rows dequantize less often, so the tile takes fewer columns.
constexpr int kInterleavedTileRows = 12;
template <int R>
constexpr int kInterleavedTileVecs = R <= 4 ? 4 : 2;
/// Groups that stay in the first-level cache while such tiles pass over them.
constexpr int64_t kInterleavedGroups = 4;
/// Rows up to which that pays. For more rows, groups are dequantized once.
constexpr int kMaxInterleavedRows = 24;
/// Rows of a tile over dequantized steps, which has room for the totals in addition to a group's sums.
constexpr int kDequantizedTileRows = 3;
/// Groups that are dequantized at a time, 8 KB each.
constexpr int64_t kDequantizedGroups = 4;
static_assert(kDequantizedGroups * kW8GroupSteps <= kW8ScratchSteps);

/// Adds to c [R, V * 16] the GEMM of LHS rows with a group that is dequantized as it is read.
template <int R, int V, PrefetchKind kPrefetchKind>
MILLRACE_INLINE void gemm_interleaved_group(const char* lhs, size_t lhs_stride, const char* steps, const char* scales,
                                            float* c, Prefetch& ahead) {
  constexpr int kNearRows = 6;
  const RowStrides strides(lhs_stride);
  const char* far = lhs + kNearRows * lhs_stride;
  const auto prefetch_next = [&]() __attribute__((always_inline)) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; v += 2) __builtin_prefetch(steps + v / 2 * 64 + kPrefetchDistance, 0, kPrefetchToL1);
  };
  Vec sum[R][V] = {};
  for (int step = 0; step < kW8GroupSteps; ++step) {
    if constexpr (kPrefetchKind == PrefetchKind::kSamePanel) prefetch_next();
    if constexpr (kPrefetchKind == PrefetchKind::kNextBlock) {
      __builtin_prefetch(ahead.at, 0, kPrefetchToL2);
      ahead.at += ahead.step;
    }
    __m512bh b[V];
#pragma clang loop unroll(full)
    for (int v = 0; v < V; v += 2) dequantize_interleaved(steps + v / 2 * 64, b[v], b[v + 1]);
    add_dots(sum, [&](int r) { return r < kNearRows ? lhs + strides.to(r) : far + strides.to(r - kNearRows); }, b);
    lhs += Bf16Format::kLhsStep;
    far += Bf16Format::kLhsStep;
    steps += kInterleavedStepBytes;
  }
  if constexpr (kPrefetchKind == PrefetchKind::kSamePanel)
    prefetch_next();              // for the bytes of the scales, so that no line is skipped
  asm volatile("" ::: "memory");  // what is loaded below would take the sums' registers above
#pragma clang loop unroll(full)
  for (int v = 0; v < V; ++v) {
    const Vec scale = group_scale(scales, v);
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r) {
      float* const at = c + r * kPanelColumns + v * kLanes;
      store(at, fma(sum[r][v], scale, load(at)));
    }
  }
}

template <int R, PrefetchKind kPrefetchKind>
void gemm_interleaved_tile(const char* lhs, size_t lhs_stride, const char* panel, int64_t groups, float* c,
                           Prefetch ahead) {
  constexpr int V = kInterleavedTileVecs<R>;
  for (int64_t g = 0; g < groups; ++g) {
#pragma clang loop unroll(disable)
    for (int first = 0; first < kPanelVecs; first += V) {
      gemm_interleaved_group<R, V, kPrefetchKind>(lhs, lhs_stride, panel + kW8ScaleBytes + first / 2 * 64,
                                                  panel + first * kLanes * 2, c + first * kLanes, ahead);
    }
    lhs += kLhsGroupBytes;
    panel += kW8GroupBytes;
  }
}

/// Adds to c [R, 64] the GEMM with groups whose dequantized steps are contiguous.
template <int R>
void gemm_dequantized_tile(const char* lhs, size_t lhs_stride, const char* panel, const char* steps, int64_t groups,
                           float* c) {
  const RowStrides strides(lhs_stride);
  Vec total[R][kPanelVecs];
  load_tile(total, c, kPanelColumns);
  for (int64_t g = 0; g < groups; ++g, panel += kW8GroupBytes) {
    Vec sum[R][kPanelVecs] = {};
    for (int step = 0; step < kW8GroupSteps; ++step) {
      __m512bh b[kPanelVecs];
#pragma clang loop unroll(full)
      for (int v = 0; v < kPanelVecs; ++v) b[v] = load_as<__m512bh>(steps + v * 64);
      add_dots(sum, [&](int r) { return lhs + strides.to(r); }, b);
      lhs += Bf16Format::kLhsStep;
      steps += kDequantizedStepBytes;
    }
#pragma clang loop unroll(full)
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec scale = group_scale(panel, v);
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) total[r][v] = fma(sum[r][v], scale, total[r][v]);
    }
  }
  store_tile(total, c, kPanelColumns);
}

MILLRACE_INLINE void dequantize_groups(const char* panel, int64_t groups, char* out) {
  for (int64_t g = 0; g < groups; ++g, panel += kW8GroupBytes) {
    const char* bytes = panel + kW8ScaleBytes;
    for (int i = 0; i < kW8GroupSteps * kPanelVecs / 2; ++i, bytes += 64, out += 128) {
      __builtin_prefetch(bytes + kPrefetchDistance, 0, kPrefetchToL1);
      __m512bh first;
      __m512bh second;
      dequantize_interleaved(bytes, first, second);
      store_as(out, first);
      store_as(out + 64, second);
    }
  }
}

/// Runs a GEMM. A total is the fma of each group's sum and scale in order, whatever the tiles.
void gemm_w8_interleaved(const GemmTask& task) {
  const int64_t groups = task.steps / kW8GroupSteps;
  const bool alone = task.rows <= kInterleavedTileRows;
  const bool few = task.rows <= kMaxInterleavedRows;
  const int64_t block = alone ? groups : few ? kInterleavedGroups : kDequantizedGroups;
  auto* const scratch = reinterpret_cast<char*>(task.scratch);
  for (int64_t i = 0; i < int64_t{task.rows} * kPanelColumns; i += kLanes) store(task.c + i, Vec{});
  for (int64_t group = 0; group < groups; group += block) {
    const int64_t count = groups - group < block ? groups - group : block;
    const char* const panel = reinterpret_cast<const char*>(task.panel) + group * kW8GroupBytes;
    const char* const lhs = reinterpret_cast<const char*>(task.lhs) + group * kLhsGroupBytes;
    const auto lhs_of = [&](int row) { return lhs + static_cast<size_t>(row) * task.lhs_stride; };
    if (!few) {
      dequantize_groups(panel, count, scratch);
      for_row_tiles<kDequantizedTileRows>(task.rows, [&](auto rows, int row) {
        gemm_dequantized_tile<decltype(rows)::kCount>(lhs_of(row), task.lhs_stride, panel, scratch, count,
                                                      task.c + row * kPanelColumns);
      });
      continue;
    }
    for_row_tiles<kInterleavedTileRows>(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      constexpr size_t kBlockBytes = kInterleavedGroups * kW8GroupBytes;
      constexpr size_t kTileSteps = kInterleavedGroups * kW8GroupSteps * kPanelVecs / kInterleavedTileVecs<R>;
      float* const c = task.c + row * kPanelColumns;
      if (alone) {
        gemm_interleaved_tile<R, PrefetchKind::kSamePanel>(lhs_of(row), task.lhs_stride, panel, count, c, {});
      } else {
        const PrefetchShare share = prefetch_share_of_tile(kBlockBytes, kBlockBytes / kTileSteps, row, R, task.rows);
        gemm_interleaved_tile<R, PrefetchKind::kNextBlock>(
            lhs_of(row), task.lhs_stride, panel, count, c,
            {PrefetchKind::kNextBlock, panel + kPrefetchBlocks * kBlockBytes + share.first, share.step});
      }
    });
  }
}

}  // namespace
}  // namespace millrace::cpu

#endif
