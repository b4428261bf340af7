#pragma once

// GEMM of 8-bit panels with bf16 rows on tile registers (AMX). Groups are dequantized to bf16 tiles in scratch that
// stays in the first-level cache. While tiles multiply them, the next groups are dequantized. One row is multiplied by
// vectors. Included only by kernels.cc.

#include "cpu/amx_kernel.h"

namespace millrace::cpu {
namespace {

/// The byte permutation for each of the four quarters of a vector's 64 values.
struct ByteMoves {
  alignas(64) uint8_t from[4][64] = {};
};

/// Moves a value to the second byte of each word.
constexpr ByteMoves kValueMoves = [] {
  ByteMoves moves;
  for (int at = 0; at < 64; ++at) {
    moves.from[at / 16][at % 16 * 4 + 1] = static_cast<uint8_t>(w8_tiled_byte(at / 2, at % 2));
  }
  return moves;
}();

/// Moves a column's scale to the upper half of each of its two words.
constexpr ByteMoves kScaleMoves = [] {
  ByteMoves moves;
  for (int at = 0; at < 64; ++at) {
    for (int byte = 0; byte < 2; ++byte) {
      moves.from[at / 16][at % 16 * 4 + 2 + byte] = static_cast<uint8_t>(at / 2 * 2 + byte);
    }
  }
  return moves;
}();

/// Converts bytes to values. A byte of value + 128, as the second byte of 32768.0f, makes 32768 + 128 + value. One
/// multiply-add without rounding subtracts the offset and scales, while the scale is at most kMaxTiledW8Scale. One
/// quarter's bytes are in position already; permutations, limited to one port, move the others.
class W8Dequantizer {
 public:
  /// Returns 32 values, from the 16 words of a quarter of the bytes.
  template <int kQuarter>
  [[nodiscard]] MILLRACE_INLINE Vec words(__m512i bytes) const {
    if constexpr (kQuarter == 0) {
      constexpr int kOrOfBoth = 0xF8;  // a | (b & c)
      return reinterpret_cast<Vec>(_mm512_ternarylogic_epi32(base_, bytes, second_bytes_, kOrOfBoth));
    } else {
      constexpr __mmask64 kSecondBytes = 0x2222222222222222;
      const auto from = load_as<__m512i>(kValueMoves.from[kQuarter]);
      return reinterpret_cast<Vec>(_mm512_mask_permutexvar_epi8(base_, kSecondBytes, from, bytes));
    }
  }

 private:
  __m512i base_ = _mm512_set1_epi32(0x47000000);  // 32768.0f
  __m512i second_bytes_ = _mm512_set1_epi32(0xFF00);
};

/// The scales of 32 columns of a group.
struct W8Scales {
  Vec scale[4];
  Vec base[4];  // added to words() times scale
  bool exact;   // all are powers of two: a value times its scale is exact in bf16

  W8Scales() = default;
  MILLRACE_INLINE explicit W8Scales(const char* scales) {
    constexpr int32_t kFractionsOfBf16 = 0x007F007F;  // of two
    constexpr __mmask64 kUpperHalves = 0xCCCCCCCCCCCCCCCC;
    const auto bytes = load_as<__m512i>(scales);
    exact = !any_lane((load_as<Ints>(scales) & kFractionsOfBf16) != 0);
#pragma clang loop unroll(full)
    for (int quarter = 0; quarter < 4; ++quarter) {
      const auto from = load_as<__m512i>(kScaleMoves.from[quarter]);
      scale[quarter] = reinterpret_cast<Vec>(_mm512_mask_permutexvar_epi8(__m512i{}, kUpperHalves, from, bytes));
      base[quarter] = scale[quarter] * -(32768.0f + 128.0f);
    }
  }

  /// Dequantizes the 64 values of a step, [4 quarters][16]. A column's two values are adjacent.
  MILLRACE_INLINE void widen(const W8Dequantizer& dequantizer, const char* from, Vec (&value)[4]) const {
    const auto bytes = load_as<__m512i>(from);
    value[0] = fma(dequantizer.words<0>(bytes), scale[0], base[0]);
    value[1] = fma(dequantizer.words<1>(bytes), scale[1], base[1]);
    value[2] = fma(dequantizer.words<2>(bytes), scale[2], base[2]);
    value[3] = fma(dequantizer.words<3>(bytes), scale[3], base[3]);
  }
};

MILLRACE_INLINE auto in_bf16(Vec low, Vec high) {
  return _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low));
}

constexpr int kW8Halves = 2;  // of a panel's columns: 32
constexpr size_t kW8HalfScaleBytes = kW8ScaleBytes / kW8Halves;
constexpr size_t kW8StepBytes = kPanelColumns;  // of a half
constexpr size_t kW8HalfBytes = kTileSteps * kW8StepBytes;

constexpr size_t kTiledW8PrefetchDistance = 8192;  // bytes

/// Calls take(values, step) for the 16 steps of half a group, line by line. A second pass for every second line costs
/// one row a quarter of the memory bandwidth, and 16 loads in a row cost some percent (bench/results).
template <class Step>
MILLRACE_INLINE void for_each_w8_step(const char* values, const Step& take) {
#pragma clang loop unroll(disable)
  for (int step = 0; step < kTileSteps; ++step, values += kW8StepBytes) {
    __builtin_prefetch(values + kTiledW8PrefetchDistance, 0, kPrefetchToL2);
    take(values, step);
  }
}

/// Dequantizes half a group to bf16, [2][16 steps][16][2], in the tile layout of kernels.h. Calls between(step) after
/// each step.
template <class Between>
MILLRACE_INLINE void dequantize_half_group(const char* group, int half, char* out, const Between& between) {
  const W8Dequantizer dequantizer;
  const W8Scales scales(group + half * kW8HalfScaleBytes);
  out += half * 2 * kTileBytes;
  const auto expand_step = [&](const char* values, int step) __attribute__((always_inline)) {
    Vec value[4];
    scales.widen(dequantizer, values, value);
#pragma clang loop unroll(full)
    for (int tile = 0; tile < 2; ++tile) {
      store_as(out + tile * kTileBytes + step * kTileStride, in_bf16(value[tile * 2], value[tile * 2 + 1]));
    }
    between(step);
  };
  for_each_w8_step(group + kW8ScaleBytes + half * kW8HalfBytes, expand_step);
}

MILLRACE_INLINE void dequantize_group(const char* group, char* out) {
  for (int half = 0; half < kW8Halves; ++half) dequantize_half_group(group, half, out, [](int) {});
}

/// Multiplies few rows. A group is one tile deep. It is dequantized some groups ahead, since tile loads cannot use
/// lines still on their way to the cache. The tiles of a group run between the dequantization steps of another.
void few_rows_w8_amx(const GemmTask& task) {
  constexpr int64_t kAhead = 2;
  constexpr int64_t kSlots = 4;
  static_assert(kSlots * kTileSteps <= kW8ScratchSteps && kAhead < kSlots);
  const int64_t groups = task.steps / kTileSteps;
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  auto* scratch = reinterpret_cast<char*>(task.scratch);
  const auto group_at = [&](int64_t group) { return panel + group * kW8GroupBytes; };
  const auto slot = [&](int64_t group) { return scratch + static_cast<size_t>(group % kSlots) * kStepTilesBytes; };
  LhsTiles lhs = lhs_tiles(task, 0, 0);
  configure_gemm(task.rows);
  task.accumulate ? load_sums(task.c) : clear_sums();
  const int64_t first = groups < kAhead ? groups : kAhead;
  for (int64_t group = 0; group < first; ++group) dequantize_group(group_at(group), slot(group));
  for (int64_t group = 0; group < groups - first; ++group) {
    const char* b = slot(group);
    const char* const from = group_at(group + kAhead);
    char* const to = slot(group + kAhead);
    _tile_loadd(4, lhs.data, lhs.row_stride);
    dequantize_half_group(from, 0, to, [&](int step) __attribute__((always_inline)) {
      if (step == 4) multiply_tile<Bf16Dot, 0>(b);
      if (step == 11) multiply_tile<Bf16Dot, 1>(b);
    });
    dequantize_half_group(from, 1, to, [&](int step) __attribute__((always_inline)) {
      if (step == 4) multiply_tile<Bf16Dot, 2>(b);
      if (step == 11) multiply_tile<Bf16Dot, 3>(b);
    });
    lhs.data += lhs.tile_stride;
  }
  for (int64_t group = groups - first; group < groups; ++group) {
    multiply_tiles<Bf16Dot>(lhs, slot(group));
    lhs.data += lhs.tile_stride;
  }
  store_sums(task.c);
  _tile_release();
}

/// Elements of the LHS row that are kept in f32 at a time.
constexpr int64_t kOneRowElements = 2048;
static_assert(kOneRowElements * sizeof(float) <= kW8ScratchBytes);

/// Rounds to bf16 within f32: adding 65536 times x and subtracting it keeps 8 bits of x. x is at most 127 times
/// kMaxTiledW8Scale.
MILLRACE_INLINE Vec rounded_to_bf16(Vec x) {
  const Vec factor = splat(65536.0f);
  return fma(-x, factor, fma(x, factor, x));
}

typedef double Doubles __attribute__((vector_size(64)));

/// Computes sums [32 columns] += an LHS row · half a group in the order of a tile instruction. It sums even and odd
/// elements separately from zero, then both, then adds that to the sums.
MILLRACE_INLINE void add_half_group(const float* lhs, const char* group, int half, const W8Dequantizer& dequantizer,
                                    Vec (&sums)[2]) {
  const W8Scales scales(group + half * kW8HalfScaleBytes);
  Vec sum[4] = {};
  const auto add_steps = [&](auto round) __attribute__((always_inline)) {
    const auto add_step = [&](const char* values, int step) __attribute__((always_inline)) {
      Vec value[4];
      scales.widen(dequantizer, values, value);
      const auto two = load_as<double>(lhs + step * 2);
      const auto pair = reinterpret_cast<Vec>(Doubles{two, two, two, two, two, two, two, two});
#pragma clang loop unroll(full)
      for (int quarter = 0; quarter < 4; ++quarter) sum[quarter] = fma(pair, round(value[quarter]), sum[quarter]);
    };
    for_each_w8_step(group + kW8ScaleBytes + half * kW8HalfBytes, add_step);
  };
  if (scales.exact) {
    add_steps([](Vec value) __attribute__((always_inline)) { return value; });
  } else {
    add_steps([](Vec value) __attribute__((always_inline)) { return rounded_to_bf16(value); });
  }
#pragma clang loop unroll(full)
  for (int v = 0; v < 2; ++v) {
    const Vec low = sum[v * 2];
    const Vec high = sum[v * 2 + 1];
    sums[v] += __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
               __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  }
}

/// Multiplies one row by vectors, which dequantize and multiply in f32, bit-identical to tiles. Storing tiles would
/// cost more than tiles save; from two rows on tiles win.
void one_row_w8_amx(const GemmTask& task) {
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  const auto* row = reinterpret_cast<const char*>(task.lhs);
  auto* wide = reinterpret_cast<float*>(task.scratch);
  const int64_t elements = task.steps * 2;
  const W8Dequantizer dequantizer;
  Vec sums[kW8Halves][2] = {};
  for (int v = 0; task.accumulate && v < kW8Halves * 2; ++v) sums[v / 2][v % 2] = load(task.c + v * kLanes);
  for (int64_t first = 0; first < elements; first += kOneRowElements) {
    const int64_t count = elements - first < kOneRowElements ? elements - first : kOneRowElements;
    for (int64_t i = 0; i < count; i += kLanes) store(wide + i, widen_bf16(load_as<Halves>(row + (first + i) * 2)));
    for (int64_t i = 0; i < count; i += kW8GroupElements, panel += kW8GroupBytes) {
#pragma clang loop unroll(full)
      for (int half = 0; half < kW8Halves; ++half) add_half_group(wide + i, panel, half, dequantizer, sums[half]);
    }
  }
  for (int v = 0; v < kW8Halves * 2; ++v) store(task.c + v * kLanes, sums[v / 2][v % 2]);
}

/// Bytes of half of a group's columns in bf16, [2 tiles].
constexpr size_t kW8HalfTilesBytes = 2 * kTileBytes;
constexpr int64_t kUnitGroups = 3;
constexpr size_t kUnitBytes = kUnitGroups * kW8HalfTilesBytes;
static_assert(2 * kUnitBytes <= kW8ScratchBytes);

/// Dequantizes a unit some lines at a time while tiles multiply the previous unit.
class DequantizeUnit {
 public:
  /// Starts one half of `groups` groups, of which `group` is the first, with `lines` of a half's 16 lines at a time.
  MILLRACE_INLINE DequantizeUnit(const char* group, int half, int64_t groups, char* out, int lines)
      : scales_at_(group + half * kW8HalfScaleBytes),
        values_(group + kW8ScaleBytes + half * kW8HalfBytes),
        end_(values_ + groups * kW8GroupBytes),
        out_(out),
        lines_(lines) {}

  MILLRACE_INLINE void run_some() {
    if (values_ == end_) return;
    if (line_ == 0) scales_ = W8Scales(scales_at_);
    const int lines = kTileSteps - line_ < lines_ ? kTileSteps - line_ : lines_;
#pragma clang loop unroll(disable)
    for (int i = 0; i < lines; ++i, values_ += kW8StepBytes, out_ += kTileStride) {
      __builtin_prefetch(values_ + kTiledW8PrefetchDistance, 0, kPrefetchToL2);
      Vec value[4];
      scales_.widen(widening_, values_, value);
      store_as(out_, in_bf16(value[0], value[1]));
      store_as(out_ + kTileBytes, in_bf16(value[2], value[3]));
    }
    line_ += lines;
    if (line_ < kTileSteps) return;
    line_ = 0;
    out_ += kTileBytes;  // over the second tile
    values_ += kW8GroupBytes - kW8HalfBytes;
    scales_at_ += kW8GroupBytes;
  }

  MILLRACE_INLINE void run_rest() {
    while (values_ != end_) run_some();
  }

 private:
  W8Dequantizer widening_;
  W8Scales scales_;
  const char* scales_at_;
  const char* values_;
  const char* end_;
  char* out_;
  int lines_;
  int line_ = 0;
};

/// Multiplies 17 and more rows in 32-row blocks. A panel's units are dequantized one by one while tiles multiply the
/// previous unit. Rows that do not fill tiles have sums of their own, since reconfiguring tiles for each unit is too
/// slow. LHS tiles are always whole.
void some_rows_w8_amx(const GemmTask& task) {
  alignas(64) float tail[kSquareRows * kPanelColumns];
  const int64_t groups = task.steps / kTileSteps;
  const int64_t units = (groups + kUnitGroups - 1) / kUnitGroups * kW8Halves;
  const int squares = (task.rows + kSquareRows - 1) / kSquareRows;
  const int tail_row = task.rows % kTileHeight == 0 ? task.rows : task.rows / kSquareRows * kSquareRows;
  const size_t tail_bytes = static_cast<size_t>(task.rows - tail_row) * kPanelColumns * sizeof(float);
  if (task.accumulate) __builtin_memcpy(tail, task.c + tail_row * kPanelColumns, tail_bytes);
  const auto groups_of = [&](int64_t unit) {
    const int64_t remaining = groups - unit / kW8Halves * kUnitGroups;
    return remaining < kUnitGroups ? remaining : kUnitGroups;
  };
  const auto scratch_of = [&](int64_t unit) {
    return reinterpret_cast<char*>(task.scratch) + static_cast<size_t>(unit % 2) * kUnitBytes;
  };
  const auto expand = [&](int64_t unit) __attribute__((always_inline)) {
    const auto* group = reinterpret_cast<const char*>(task.panel) + unit / kW8Halves * kUnitGroups * kW8GroupBytes;
    return DequantizeUnit(group, static_cast<int>(unit % kW8Halves), unit < units ? groups_of(unit) : 0,
                          scratch_of(unit), (static_cast<int>(kTileSteps) + squares - 1) / squares);
  };
  PrefetchCursor none;
  expand(0).run_rest();
  configure_gemm(kTileHeight);
  for (int64_t unit = 0; unit < units; ++unit) {
    const int64_t step = unit / kW8Halves * kUnitGroups * kTileSteps;
    const int64_t steps = groups_of(unit) * kTileSteps;
    const bool fresh = step == 0 && !task.accumulate;
    DequantizeUnit next = expand(unit + 1);
    for (int row = 0; row < task.rows; row += kSquareRows) {
      float* const sums = row == tail_row ? tail : task.c + row * kPanelColumns;
      float* const c = sums + unit % kW8Halves * (kPanelColumns / kW8Halves);
      const char* const upper = lhs_tiles(task, row, step).data;
      if (task.rows - row > kTileHeight) {
        const char* const lower = lhs_tiles(task, row + kTileHeight, step).data;
        tile_square<Bf16Dot, kW8HalfTilesBytes, true, false>(upper, lower, scratch_of(unit), steps, c, fresh, none,
                                                             next);
      } else {
        tile_square<Bf16Dot, kW8HalfTilesBytes, false, false>(upper, upper, scratch_of(unit), steps, c, fresh, none,
                                                              next);
      }
    }
    next.run_rest();
  }
  __builtin_memcpy(task.c + tail_row * kPanelColumns, tail, tail_bytes);
  _tile_release();
}

void many_rows_w8_amx(const GemmTask& task) {
  constexpr int64_t kBlockGroups = kW8ScratchSteps / kTileSteps;
  const int64_t groups = task.steps / kTileSteps;
  const auto* panel = reinterpret_cast<const char*>(task.panel);
  auto* scratch = reinterpret_cast<char*>(task.scratch);
  for (int64_t first = 0; first < groups; first += kBlockGroups) {
    const int64_t count = groups - first < kBlockGroups ? groups - first : kBlockGroups;
    for (int64_t group = 0; group < count; ++group) {
      dequantize_group(panel + (first + group) * kW8GroupBytes, scratch + static_cast<size_t>(group) * kStepTilesBytes);
    }
    tile_rows<Bf16Dot, false>(task, first * kTileSteps, count * kTileSteps, scratch, nullptr,
                              first == 0 && !task.accumulate, NoEpilogue(task));
  }
  _tile_release();
}

void gemm_w8_amx(const GemmTask& task) {
  flushing_subnormals(task.rows >= kManySquareRows        ? many_rows_w8_amx
                      : task.rows > kTileHeight           ? some_rows_w8_amx
                      : task.rows == 1 && !task.tiled_lhs ? one_row_w8_amx
                                                          : few_rows_w8_amx,
                      task);
}

}  // namespace
}  // namespace millrace::cpu
