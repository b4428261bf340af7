#pragma once

// GEMM of 8-bit panels with 8-bit rows. Within a group of 32 the sums are integers, equal for every instruction set and
// path. Groups are added in f32 in order. Included only by kernels.cc.

#include "cpu/gemm_kernel.h"
#include "cpu/w8_kernel.h"

namespace millrace::cpu {
namespace {

constexpr int kInt8GroupSteps = kW8GroupElements / kInt8Depth;
/// A step of an LHS row: 4 int8 for the dot instruction. Without it: values 0 and 2, then 1 and 3, as int16.
#if MILLRACE_VNNI
constexpr int kInt8StepBytes = 4;
#else
constexpr int kInt8StepBytes = 8;
#endif
constexpr int kInt8LhsGroupBytes = kInt8GroupSteps * kInt8StepBytes + static_cast<int>(sizeof(LhsQuantParams));
/// Steps per loop iteration. With a whole group the compiler runs out of registers where there are 16 of them.
constexpr int kInt8StepUnroll = kWideTiles ? kInt8GroupSteps : 1;
constexpr int kInt8Columns = kInt8Depth * kPanelColumns;  // bytes of a step of a panel

#if defined(__AVX512F__)
constexpr int kInt8TileRows = 6;
#elif defined(__AVX2__)
constexpr int kInt8TileRows = 4;
#else
constexpr int kInt8TileRows = 2;
#endif
/// Rows up to which a wide tile has all columns of a panel.
constexpr int kInt8WholeRows = 3;
/// Vectors of columns with R rows. Each takes a register for its group and one for its sum.
template <int R>
constexpr int kInt8TileVecs = kTileVecs == 1        ? 1
                              : R <= kInt8WholeRows ? 4
                                                    : 2;

MILLRACE_INLINE Ints splat_int(int32_t value) {
  return Ints{} + value;
}

/// Loads 16 columns of a step.
#if MILLRACE_VNNI
struct Int8Step {
  Ints bytes;
  explicit MILLRACE_INLINE Int8Step(const char* from) : bytes(load_as<Ints>(from)) {}
  explicit MILLRACE_INLINE Int8Step(Ints columns) : bytes(columns) {}
  MILLRACE_INLINE Ints add_dot(Ints sum, const char* lhs) const {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(bytes),
                                                      _mm512_set1_epi32(load_as<int32_t>(lhs))));
#else
    const __m256i values = _mm256_set1_epi32(load_as<int32_t>(lhs));
    const auto dot_half = [&](int half) __attribute__((always_inline)) {
      char* to = reinterpret_cast<char*>(&sum) + half * 32;
      store_as(to,
               _mm256_dpbusd_avx_epi32(load_as<__m256i>(to),
                                       load_as<__m256i>(reinterpret_cast<const char*>(&bytes) + half * 32), values));
    };
    dot_half(0);
    dot_half(1);
    return sum;
#endif
  }
};
#else
/// Computes a.low · b.low + a.high · b.high of int16 per lane.
MILLRACE_INLINE Ints dot_pairs(Ints a, Ints b) {
#if defined(__AVX512BW__)
  return reinterpret_cast<Ints>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  Ints out;
  for (int half = 0; half < 2; ++half) {
    const char* from_a = reinterpret_cast<const char*>(&a) + half * 32;
    const char* from_b = reinterpret_cast<const char*>(&b) + half * 32;
    store_as(reinterpret_cast<char*>(&out) + half * 32,
             _mm256_madd_epi16(load_as<__m256i>(from_a), load_as<__m256i>(from_b)));
  }
  return out;
#else
  return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

struct Int8Step {
  Ints even;
  Ints odd;
  explicit MILLRACE_INLINE Int8Step(const char* from) {
    const Bits bytes = load_as<Bits>(from);
    even = reinterpret_cast<Ints>(bytes & 0x00FF00FFu);
    odd = reinterpret_cast<Ints>((bytes >> 8) & 0x00FF00FFu);
  }
  MILLRACE_INLINE Ints add_dot(Ints sum, const char* lhs) const {
    return sum + dot_pairs(even, splat_int(load_as<int32_t>(lhs))) +
           dot_pairs(odd, splat_int(load_as<int32_t>(lhs + 4)));
  }
};
#endif

/// Groups of a panel (2 KB each) that stay in the first-level cache while row tiles pass over them: with tiles that
/// share the prefetching, and with many more.
constexpr int64_t kInt8SharedGroups = kWideTiles ? 4 : 8;
constexpr int64_t kInt8BlockGroups = 8;
/// Rows up to which memory is the limit, as kMaxMemoryBoundRows. Without the dot instruction computing always takes
/// longer than reading.
#if MILLRACE_VNNI
constexpr int kMaxMemoryBoundW8A8Rows = kMaxMemoryBoundRows;
#else
constexpr int kMaxMemoryBoundW8A8Rows = 0;
#endif

/// The target of a streamed panel's prefetches. With the dot instruction one row consumes prefetched data at once, at
/// memory bandwidth. The first-level cache has too few miss slots for that.
constexpr int kW8A8StreamPrefetchLevel = kMaxMemoryBoundW8A8Rows > 0 ? kPrefetchToL2 : kPrefetchToL1;

/// Multiplies R rows over `groups` groups of a panel. Adds to c unless `fresh`.
template <int R, PrefetchKind kPrefetchKind>
void int8_tile(const char* lhs, size_t lhs_stride, const char* panel, int64_t groups, float* c, bool fresh,
               Prefetch ahead) {
  constexpr int V = kInt8TileVecs<R>;
  for (int first = 0; first < kPanelColumns; first += V * kLanes) {
    Vec acc[R][V] = {};
    if (!fresh) load_tile(acc, c + first, kPanelColumns);
    const char* a = lhs;
    const char* group = panel;
    for (int64_t g = 0; g < groups; ++g, a += kInt8LhsGroupBytes, group += kW8GroupBytes) {
      LhsQuantParams quant_params[R];
      Ints sum[R][V];
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) {
        quant_params[r] =
            load_as<LhsQuantParams>(a + static_cast<size_t>(r) * lhs_stride + kInt8GroupSteps * kInt8StepBytes);
#pragma clang loop unroll(full)
        for (int v = 0; v < V; ++v) sum[r][v] = splat_int(quant_params[r].compensation);
      }
      const char* columns = group + kW8ScaleBytes + first * kInt8Depth;
#pragma clang loop unroll_count(kInt8StepUnroll)
      for (int step = 0; step < kInt8GroupSteps; ++step, columns += kInt8Columns) {
#pragma clang loop unroll(full)
        for (int v = 0; v < V; ++v) {
          const char* at = columns + v * kLanes * kInt8Depth;
          if constexpr (kPrefetchKind == PrefetchKind::kSamePanel)
            __builtin_prefetch(at + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
          if constexpr (kPrefetchKind == PrefetchKind::kNextBlock) {
            __builtin_prefetch(ahead.at + v * kLanes * kInt8Depth, 0, kWideTiles ? kPrefetchToL2 : kPrefetchToL1);
          }
          const Int8Step right(at);
#pragma clang loop unroll(full)
          for (int r = 0; r < R; ++r) {
            sum[r][v] = right.add_dot(sum[r][v], a + static_cast<size_t>(r) * lhs_stride + step * kInt8StepBytes);
          }
        }
        if constexpr (kPrefetchKind == PrefetchKind::kNextBlock) ahead.at += ahead.step;
      }
#pragma clang loop unroll(full)
      for (int v = 0; v < V; ++v) {
        const Vec scale = group_scale(group, first / kLanes + v);
#pragma clang loop unroll(full)
        for (int r = 0; r < R; ++r) {
          acc[r][v] = fma(__builtin_convertvector(sum[r][v], Vec), scale * quant_params[r].scale, acc[r][v]);
        }
      }
    }
    store_tile(acc, c + first, kPanelColumns);
  }
}

/// Returns what a tile of R rows prefetches, as prefetch_of_tile() does.
template <int R>
MILLRACE_INLINE Prefetch prefetch_of_w8a8_tile(const GemmTask& task, const char* block, int row) {
  constexpr size_t kGroupTileSteps = kInt8GroupSteps * (kPanelColumns / kLanes) / kInt8TileVecs<R>;
  if (tiles_prefetch_next_panel(task, kMaxMemoryBoundW8A8Rows)) {
    const auto groups_before = static_cast<size_t>(block - reinterpret_cast<const char*>(task.panel)) / kW8GroupBytes;
    return prefetch_of_next_panel(task, kW8GroupBytes / kInt8GroupSteps, kW8GroupBytes / kGroupTileSteps, row, R,
                                  groups_before * kGroupTileSteps);
  }
  if (!tiles_share_prefetch(task.rows, kInt8WholeRows, kMaxMemoryBoundW8A8Rows)) {
    const bool asks = row == 0 && !relies_on_hardware_prefetch(task.rows);
    return {asks ? PrefetchKind::kSamePanel : PrefetchKind::kNone, nullptr, 0};
  }
  constexpr size_t kBlockBytes = kInt8SharedGroups * kW8GroupBytes;
  constexpr size_t kTileSteps = kInt8SharedGroups * kGroupTileSteps;
  const PrefetchShare share = prefetch_share_of_tile(kBlockBytes, kBlockBytes / kTileSteps, row, R, task.rows);
  return {PrefetchKind::kNextBlock, block + kPrefetchBlocks * kBlockBytes + share.first, share.step};
}

void gemm_w8a8(const GemmTask& task) {
  const int64_t groups = task.steps / kInt8GroupSteps;
  const int64_t block = tiles_share_prefetch(task.rows, kInt8WholeRows, kMaxMemoryBoundW8A8Rows) ? kInt8SharedGroups
                        : task.rows <= kInt8WholeRows                                            ? groups
                                                                                                 : kInt8BlockGroups;
  const auto* lhs = reinterpret_cast<const char*>(task.lhs);
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  for (int64_t group = 0; group < groups; group += block) {
    const int64_t count = groups - group < block ? groups - group : block;
    const char* a = lhs + group * kInt8LhsGroupBytes;
    const char* b = panel + group * kW8GroupBytes;
    for_row_tiles<kInt8TileRows>(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* pack_tiled_lhs = a + static_cast<size_t>(row) * task.lhs_stride;
      float* c = task.c + row * kPanelColumns;
      const Prefetch ahead = prefetch_of_w8a8_tile<R>(task, b, row);
      with_prefetch_kind(ahead.what, [&](auto what) {
        int8_tile<R, what()>(pack_tiled_lhs, task.lhs_stride, b, count, c, group == 0, ahead);
      });
    });
  }
}

/// Quantizes a group of a row to int8 values and returns their LhsQuantParams. A non-finite group becomes NaN; one
/// whose values are all below 2^-100 becomes zero.
MILLRACE_INLINE LhsQuantParams quantize_lhs_group(Vec low, Vec high, int8_t (&values)[kW8GroupElements]) {
  const auto magnitude = [](Vec value) __attribute__((always_inline)) {
    return reinterpret_cast<Ints>(reinterpret_cast<Bits>(value) & 0x7FFFFFFFu);  // ordered as magnitudes, NaN above all
  };
  const Ints a = magnitude(low);
  const Ints b = magnitude(high);
  const int32_t largest_bits = __builtin_reduce_max(a > b ? a : b);
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
  store_as(values, Bytes{});
  store_as(values + kLanes, Bytes{});
  if (largest_bits >= 0x7F800000) return {__builtin_nanf(""), 0};
  if (largest < 0x1p-100f) return {};
  const Vec inverse = splat(127.0f / largest);
  const auto round = [&](Vec value) __attribute__((always_inline)) {
    // Adding and subtracting it rounds a small f32 to the nearest integer, ties to even.
    return __builtin_convertvector(value * inverse + 12582912.0f - 12582912.0f, Ints);
  };
  const Ints first = round(low);
  const Ints second = round(high);
  store_as(values, __builtin_convertvector(first, Bytes));
  store_as(values + kLanes, __builtin_convertvector(second, Bytes));
  return {largest / 127.0f, -128 * __builtin_reduce_add(first + second)};
}

/// Quantizes `count` values group by group. Calls store(out, values, params), which returns the end of the group.
template <class Store>
MILLRACE_INLINE void quantize_lhs_groups(const float* in, int64_t count, std::byte* out, const Store& store) {
  for (int64_t first = 0; first < count; first += kW8GroupElements) {
    const int64_t remaining = count - first;
    const Vec low = load_part(in + first, remaining < kLanes ? remaining : kLanes, 0.0f);
    const int64_t rest = remaining - kLanes;
    const Vec high = rest <= 0 ? Vec{} : load_part(in + first + kLanes, rest < kLanes ? rest : kLanes, 0.0f);
    int8_t values[kW8GroupElements];
    const LhsQuantParams quant_params = quantize_lhs_group(low, high, values);
    out = store(out, values, quant_params);
  }
}

/// Stores the values of a group in the order of the inputs.
MILLRACE_INLINE std::byte* store_lhs_bytes(std::byte* out, const int8_t* values, const LhsQuantParams& quant_params) {
  __builtin_memcpy(out, values, kW8GroupElements);
  store_as(out + kW8GroupElements, quant_params);
  return out + kW8GroupElements + sizeof(quant_params);
}

void quantize_lhs(const float* in, int64_t count, std::byte* out) {
#if MILLRACE_VNNI
  quantize_lhs_groups(in, count, out, store_lhs_bytes);
#else
  const auto store_words = [](std::byte* to, const int8_t* values, const LhsQuantParams& quant_params) {
    int16_t words[kW8GroupElements];
    for (int i = 0; i < kW8GroupElements; i += kInt8Depth) {
      words[i] = values[i];
      words[i + 1] = values[i + 2];
      words[i + 2] = values[i + 1];
      words[i + 3] = values[i + 3];
    }
    __builtin_memcpy(to, words, sizeof(words));
    store_as(to + sizeof(words), quant_params);
    return to + sizeof(words) + sizeof(quant_params);
  };
  quantize_lhs_groups(in, count, out, store_words);
#endif
}

}  // namespace
}  // namespace millrace::cpu
