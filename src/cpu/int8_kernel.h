#pragma once

// Products of panels of 8 bits with rows of 8 bits. Within a group of 32 the sums are whole numbers, which every
// instruction set and every path finds alike; groups are added in f32 in their order. Included only by kernels.cc.

#include "cpu/product_kernel.h"
#include "cpu/w8_kernel.h"

namespace millrace::cpu {
namespace {

constexpr int kInt8GroupSteps = kW8GroupElements / kInt8Depth;
/// A step of a left row: 4 int8 for the dot instruction; without it values 0 and 2, then 1 and 3, as int16.
#if MILLRACE_VNNI
constexpr int kInt8StepBytes = 4;
#else
constexpr int kInt8StepBytes = 8;
#endif
constexpr int kInt8LeftGroupBytes = kInt8GroupSteps * kInt8StepBytes + static_cast<int>(sizeof(Int8Factors));
/// Steps of a loop's body: with all of a group the compiler runs out of registers where there are 16 of them.
constexpr int kInt8StepsAtOnce = kWideTiles ? kInt8GroupSteps : 1;
constexpr int kInt8Columns = kInt8Depth * kPanelColumns;  // bytes of a step of a panel

#if defined(__AVX512F__)
constexpr int kInt8TileRows = 6;
#elif defined(__AVX2__)
constexpr int kInt8TileRows = 4;
#else
constexpr int kInt8TileRows = 2;
#endif
/// Up to so many rows, if they are wide, a tile has all columns of a panel.
constexpr int kInt8WholeRows = 3;
/// Vectors of columns beside R rows: each takes a register for its group and one for its sum.
template <int R>
constexpr int kInt8TileVecs = kTileVecs == 1        ? 1
                              : R <= kInt8WholeRows ? 4
                                                    : 2;

MILLRACE_INLINE Ints splat_int(int32_t value) {
  return Ints{} + value;
}

/// 16 columns of a step.
#if MILLRACE_VNNI
struct Int8Step {
  Ints bytes;
  explicit MILLRACE_INLINE Int8Step(const char* from) : bytes(load_as<Ints>(from)) {}
  MILLRACE_INLINE Ints add_dot(Ints sum, const char* left) const {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(bytes),
                                                      _mm512_set1_epi32(load_as<int32_t>(left))));
#else
    const __m256i values = _mm256_set1_epi32(load_as<int32_t>(left));
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
/// Per lane a.low · b.low + a.high · b.high of int16.
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
  MILLRACE_INLINE Ints add_dot(Ints sum, const char* left) const {
    return sum + dot_pairs(even, splat_int(load_as<int32_t>(left))) +
           dot_pairs(odd, splat_int(load_as<int32_t>(left + 4)));
  }
};
#endif

/// Groups of a panel, of 2 KB, that stay in the first-level cache while tiles of rows pass over them: of those that
/// share its reading, and of many more.
constexpr int64_t kInt8SharedGroups = kWideTiles ? 4 : 8;
constexpr int64_t kInt8BlockGroups = 8;
/// As kFewRows; without the dot instruction computing takes longer than reading for any rows.
#if MILLRACE_VNNI
constexpr int kFewInt8Rows = kFewRows;
#else
constexpr int kFewInt8Rows = 0;
#endif

/// Where a streamed panel is asked to. With the dot instruction one row has read what it asks for at once, at the rate
/// of memory, and the first level has too few misses for that.
constexpr int kInt8SoonLevel = kFewInt8Rows > 0 ? kIntoSecondLevel : kIntoFirstLevel;

/// R rows over `groups` of a panel, added to c unless `fresh`.
template <int R, AskFor kAsk>
void int8_tile(const char* left, size_t left_stride, const char* panel, int64_t groups, float* c, bool fresh,
               Prefetch ahead) {
  constexpr int V = kInt8TileVecs<R>;
  for (int first = 0; first < kPanelColumns; first += V * kLanes) {
    Vec acc[R][V] = {};
    if (!fresh) load_tile(acc, c + first, kPanelColumns);
    const char* a = left;
    const char* group = panel;
    for (int64_t g = 0; g < groups; ++g, a += kInt8LeftGroupBytes, group += kW8GroupBytes) {
      Int8Factors factors[R];
      Ints sum[R][V];
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) {
        factors[r] = load_as<Int8Factors>(a + static_cast<size_t>(r) * left_stride + kInt8GroupSteps * kInt8StepBytes);
#pragma clang loop unroll(full)
        for (int v = 0; v < V; ++v) sum[r][v] = splat_int(factors[r].correction);
      }
      const char* columns = group + kW8ScaleBytes + first * kInt8Depth;
#pragma clang loop unroll_count(kInt8StepsAtOnce)
      for (int step = 0; step < kInt8GroupSteps; ++step, columns += kInt8Columns) {
#pragma clang loop unroll(full)
        for (int v = 0; v < V; ++v) {
          const char* at = columns + v * kLanes * kInt8Depth;
          if constexpr (kAsk == AskFor::kSoon) __builtin_prefetch(at + kPrefetchBytes, 0, kInt8SoonLevel);
          if constexpr (kAsk == AskFor::kNextBlock) {
            __builtin_prefetch(ahead.at + v * kLanes * kInt8Depth, 0, kWideTiles ? kIntoSecondLevel : kIntoFirstLevel);
          }
          const Int8Step right(at);
#pragma clang loop unroll(full)
          for (int r = 0; r < R; ++r) {
            sum[r][v] = right.add_dot(sum[r][v], a + static_cast<size_t>(r) * left_stride + step * kInt8StepBytes);
          }
        }
        if constexpr (kAsk == AskFor::kNextBlock) ahead.at += ahead.step;
      }
#pragma clang loop unroll(full)
      for (int v = 0; v < V; ++v) {
        const Vec scale = group_scale(group, first / kLanes + v);
#pragma clang loop unroll(full)
        for (int r = 0; r < R; ++r) {
          acc[r][v] = fma(__builtin_convertvector(sum[r][v], Vec), scale * factors[r].scale, acc[r][v]);
        }
      }
    }
    store_tile(acc, c + first, kPanelColumns);
  }
}

/// As ahead_of_tile().
template <int R>
MILLRACE_INLINE Prefetch ahead_of_int8_tile(const ProductTask& task, const char* block, int row) {
  constexpr size_t kGroupTileSteps = kInt8GroupSteps * (kPanelColumns / kLanes) / kInt8TileVecs<R>;
  if (tiles_ask_for_next(task, kFewInt8Rows)) {
    const auto groups_before = static_cast<size_t>(block - reinterpret_cast<const char*>(task.panel)) / kW8GroupBytes;
    return ahead_in_next(task, kW8GroupBytes / kInt8GroupSteps, kW8GroupBytes / kGroupTileSteps, row, R,
                         groups_before * kGroupTileSteps);
  }
  if (!tiles_share_reading(task.rows, kInt8WholeRows, kFewInt8Rows)) {
    const bool asks = row == 0 && !streams_unasked(task.rows);
    return {asks ? AskFor::kSoon : AskFor::kNothing, nullptr, 0};
  }
  constexpr size_t kBlockBytes = kInt8SharedGroups * kW8GroupBytes;
  constexpr size_t kTileSteps = kInt8SharedGroups * kGroupTileSteps;
  const Share share = share_of_tile(kBlockBytes, kBlockBytes / kTileSteps, row, R, task.rows);
  return {AskFor::kNextBlock, block + kBlocksAhead * kBlockBytes + share.first, share.step};
}

void product_int8(const ProductTask& task) {
  const int64_t groups = task.steps / kInt8GroupSteps;
  const int64_t block = tiles_share_reading(task.rows, kInt8WholeRows, kFewInt8Rows) ? kInt8SharedGroups
                        : task.rows <= kInt8WholeRows                                ? groups
                                                                                     : kInt8BlockGroups;
  const auto* left = reinterpret_cast<const char*>(task.left);
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  for (int64_t group = 0; group < groups; group += block) {
    const int64_t count = groups - group < block ? groups - group : block;
    const char* a = left + group * kInt8LeftGroupBytes;
    const char* b = panel + group * kW8GroupBytes;
    for_row_tiles<kInt8TileRows>(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* tile_left = a + static_cast<size_t>(row) * task.left_stride;
      float* c = task.c + row * kPanelColumns;
      const Prefetch ahead = ahead_of_int8_tile<R>(task, b, row);
      with_ask(ahead.what,
               [&](auto what) { int8_tile<R, what()>(tile_left, task.left_stride, b, count, c, group == 0, ahead); });
    });
  }
}

/// The int8 values of a group of a row and their factors. A group that is not finite becomes NaN, one whose values are
/// all below 2^-100 zero.
MILLRACE_INLINE Int8Factors round_group(Vec low, Vec high, int8_t (&values)[kW8GroupElements]) {
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

void round_left(const float* in, int64_t count, std::byte* out) {
  for (int64_t first = 0; first < count; first += kW8GroupElements, out += kInt8LeftGroupBytes) {
    const int64_t left = count - first;
    const Vec low = load_part(in + first, left < kLanes ? left : kLanes, 0.0f);
    const int64_t rest = left - kLanes;
    const Vec high = rest <= 0 ? Vec{} : load_part(in + first + kLanes, rest < kLanes ? rest : kLanes, 0.0f);
    int8_t values[kW8GroupElements];
    const Int8Factors factors = round_group(low, high, values);
#if MILLRACE_VNNI
    __builtin_memcpy(out, values, sizeof(values));
#else
    int16_t words[kW8GroupElements];
    for (int i = 0; i < kW8GroupElements; i += kInt8Depth) {
      words[i] = values[i];
      words[i + 1] = values[i + 2];
      words[i + 2] = values[i + 1];
      words[i + 3] = values[i + 3];
    }
    __builtin_memcpy(out, words, sizeof(words));
#endif
    store_as(out + kInt8GroupSteps * kInt8StepBytes, factors);
  }
}

}  // namespace
}  // namespace millrace::cpu
