#pragma once

// The inner loop over a few LHS rows and columns of a panel, with sums in registers. Included only by kernels.cc.

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace millrace::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kTileRows = 6;
constexpr int kTileVecs = 4;
#elif defined(__AVX2__)
constexpr int kTileRows = 6;
constexpr int kTileVecs = 1;
#else
constexpr int kTileRows = 2;
constexpr int kTileVecs = 1;
#endif

/// Says whether a tile has all columns of a panel, or all keys of a block.
constexpr bool kWideTiles = kTileVecs * kLanes == kPanelColumns;

/// Target of prefetches (__builtin_prefetch): the first-level cache, or the second, since a block and the next one may
/// fill the first.
constexpr int kPrefetchToL1 = 3;
constexpr int kPrefetchToL2 = 2;

/// Says whether the set targets Intel's processors. AMD's processors with AVX-512 or VNNI have both, and bf16. Intel's
/// hardware prefetchers work best with a short prefetch distance.
#if defined(__AMX_BF16__) || ((defined(__AVX512F__) || MILLRACE_VNNI) && !defined(__AVX512BF16__))
constexpr bool kTargetsIntel = true;
#else
constexpr bool kTargetsIntel = false;
#endif
/// Bytes by which a streamed panel is prefetched ahead of its use, and the target cache.
constexpr int64_t kPrefetchDistance = kTargetsIntel ? 2048 : 4096;
constexpr int kPanelPrefetchLevel = kTargetsIntel ? kPrefetchToL2 : kPrefetchToL1;

/// The bytes of the next block that a tile prefetches: those from `first` on, advancing by `step` with each of its
/// steps.
struct PrefetchShare {
  size_t first = 0;
  size_t step = 0;
};

/// Returns the share of `bytes` for the tile at `row`, of `tile_rows` of `rows` rows. If the first tile prefetched
/// everything, it would stall, and memory would idle afterwards. A tile of all rows advances by `full_step`. Steps are
/// rounded up: a line between two shares would be read from memory while the sums wait.
MILLRACE_INLINE PrefetchShare prefetch_share_of_tile(size_t bytes, size_t full_step, int row, int tile_rows, int rows) {
  const auto parts = static_cast<size_t>(rows);
  return {bytes * static_cast<size_t>(row) / parts, (full_step * static_cast<size_t>(tile_rows) + parts - 1) / parts};
}

/// The addresses of LHS rows at a fixed distance. Rows use a multiple that the address mode supports, or one that stays
/// in a register, since the compiler would otherwise add addresses in each step.
struct RowStrides {
  size_t one;
  size_t three;
  size_t five;

  explicit MILLRACE_INLINE RowStrides(size_t stride) : one(stride), three(3 * stride), five(5 * stride) {
    asm("" : "+r"(three), "+r"(five));
  }
  [[nodiscard]] MILLRACE_INLINE size_t to(int row) const {
    return row == 3 ? three : row == 5 ? five : static_cast<size_t>(row) * one;
  }
};
/// The addresses of LHS rows at a distance that is known at compile time.
template <size_t kStride>
struct ConstantStrides {
  [[nodiscard]] static MILLRACE_INLINE size_t to(int row) { return static_cast<size_t>(row) * kStride; }
};

// Formats: the content of a panel, and how a step of it is multiplied. kStreamPrefetchLevel is the cache into which a
// panel that one tile of rows streams is prefetched.

/// f32 panels: a step is one element.
struct F32Format {
  using Sums = Vec;
  static constexpr size_t kLhsStep = 4;     // bytes of an LHS row per step
  static constexpr size_t kColumnStep = 4;  // bytes of a column per step
  static constexpr int kDepth = 1;          // summed elements per step
  static constexpr int kStreamPrefetchLevel = kPanelPrefetchLevel;

  template <int R, int V, class Strides>
  static MILLRACE_INLINE void step(Vec (&acc)[R][V], const char* lhs, Strides strides, const char* const (&right)[V]) {
    Vec b[V];
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) b[v] = load_as<Vec>(right[v]);
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r) {
      const Vec a = splat(load_as<float>(lhs + strides.to(r)));
#pragma clang loop unroll(full)
      for (int v = 0; v < V; ++v) acc[r][v] = fma(a, b[v], acc[r][v]);
    }
  }
  static MILLRACE_INLINE void store_lhs(std::byte* to, Vec value) { store_as(to, value); }
};

#if defined(__AVX512BF16__)
/// bf16 panels and bf16 LHS rows: a step is a pair, multiplied by one dot instruction.
struct Bf16Format {
  using Sums = Vec;
  static constexpr size_t kLhsStep = 4;
  static constexpr size_t kColumnStep = 4;
  static constexpr int kDepth = 2;
  static constexpr int kStreamPrefetchLevel = kPanelPrefetchLevel;

  template <int R, int V, class Strides>
  static MILLRACE_INLINE void step(Vec (&acc)[R][V], const char* lhs, Strides strides, const char* const (&right)[V]) {
    __m512bh b[V];
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) b[v] = load_as<__m512bh>(right[v]);
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r) {
      const Bits a = Bits{} + load_as<uint32_t>(lhs + strides.to(r));
#pragma clang loop unroll(full)
      for (int v = 0; v < V; ++v) {
        acc[r][v] = reinterpret_cast<Vec>(
            _mm512_dpbf16_ps(reinterpret_cast<__m512>(acc[r][v]), reinterpret_cast<__m512bh>(a), b[v]));
      }
    }
  }
  static MILLRACE_INLINE void store_lhs(std::byte* to, Vec value) { store_as(to, narrow_bf16(value)); }
};
#else
/// bf16 panels and f32 LHS rows: a step is a pair, widened to two f32 vectors.
struct Bf16Format {
  using Sums = Vec;
  static constexpr size_t kLhsStep = 8;
  static constexpr size_t kColumnStep = 4;
  static constexpr int kDepth = 2;
  static constexpr int kStreamPrefetchLevel = kPanelPrefetchLevel;

  template <int R, int V, class Strides>
  static MILLRACE_INLINE void step(Vec (&acc)[R][V], const char* lhs, Strides strides, const char* const (&right)[V]) {
#pragma clang loop unroll(full)
    for (int half = 0; half < 2; ++half) {
      Vec b[V];
      // Pairs are loaded anew for the other half, and not before the sums of this one: registers are scarcer than
      // loads.
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) {
#pragma clang loop unroll(full)
        for (int v = 0; v < V; ++v) pin_in_register(acc[r][v]);
      }
      asm volatile("" ::: "memory");
#pragma clang loop unroll(full)
      for (int v = 0; v < V; ++v) {
        const Bits pairs = load_as<Bits>(right[v]);
        b[v] = reinterpret_cast<Vec>(half == 0 ? pairs << 16 : pairs & 0xFFFF0000u);
      }
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) {
        const Vec a = splat(load_as<float>(lhs + strides.to(r) + half * 4));
#pragma clang loop unroll(full)
        for (int v = 0; v < V; ++v) acc[r][v] = fma(a, b[v], acc[r][v]);
      }
    }
  }
  static MILLRACE_INLINE void store_lhs(std::byte* to, Vec value) { store_as(to, value); }
};
#endif

/// Holds the sums of a tile: f32, or int32 stored in the memory of the f32 sums.
template <class Sums, int R, int V>
MILLRACE_INLINE void load_tile(Sums (&acc)[R][V], const float* c, size_t stride) {
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) acc[r][v] = load_as<Sums>(c + static_cast<size_t>(r) * stride + v * kLanes);
  }
}
template <class Sums, int R, int V>
MILLRACE_INLINE void store_tile(const Sums (&acc)[R][V], float* c, size_t stride) {
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) store_as(c + static_cast<size_t>(r) * stride + v * kLanes, acc[r][v]);
  }
}

template <int R>
struct RowCount {
  static constexpr int kCount = R;
};

/// Calls body with `rows` (kMinCount to R) as a compile-time constant.
template <int R = kTileRows, int kMinCount = 1, class Body>
MILLRACE_INLINE void with_rows(int rows, Body&& body) {
  if constexpr (R == kMinCount) {
    body(RowCount<R>{});
  } else if (rows == R) {
    body(RowCount<R>{});
  } else {
    with_rows<R - 1, kMinCount>(rows, static_cast<Body&&>(body));
  }
}

/// Cuts `rows` into tiles of nearly equal height, at least kMinRows, and calls body(Rows constant, first row).
template <int kMaxRows = kTileRows, int kMinRows = 1, class Body>
MILLRACE_INLINE void for_row_tiles(int rows, Body&& body) {
  const int tiles = (rows + kMaxRows - 1) / kMaxRows;
  for (int tile = 0; tile < tiles; ++tile) {
    const int begin = rows * tile / tiles;
    const int end = rows * (tile + 1) / tiles;
    with_rows<kMaxRows, kMinRows>(end - begin, [&](auto count) { body(count, begin); });
  }
}

}  // namespace
}  // namespace millrace::cpu
