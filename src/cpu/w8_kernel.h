#pragma once

// Products with panels of 8 bits: some steps are written out in the left operand's format into scratch that stays in
// the cache, and multiplied by the kernels for that format, so that sums and their order are theirs. Included only by
// kernels.cc.

#include "cpu/product_kernel.h"

namespace millrace::cpu {
namespace {

typedef int8_t Bytes __attribute__((vector_size(16)));

/// Up to so many rows kShortSteps are written out at a time.
constexpr int kFewW8Rows = 24;
/// Steps that are for more rows.
constexpr int64_t kLongW8Steps = kW8ScratchSteps;

MILLRACE_INLINE Vec widen_bytes(const char* from) {
  return __builtin_convertvector(__builtin_convertvector(load_as<Bytes>(from), Ints), Vec);
}

MILLRACE_INLINE Vec group_scale(const char* group, int vec) {
  return widen_bf16(load_as<Halves>(group + vec * kLanes * 2));
}

/// A group of a panel as f32 [32][64].
MILLRACE_INLINE void expand_f32(const char* group, char* out) {
  constexpr int kVecs = kPanelColumns / kLanes;
  Vec scale[kVecs];
#pragma clang loop unroll(full)
  for (int v = 0; v < kVecs; ++v) scale[v] = group_scale(group, v);
  const char* values = group + kW8ScaleBytes;
  for (int step = 0; step < kW8GroupElements; ++step, values += kPanelColumns, out += kPanelColumns * 4) {
    __builtin_prefetch(values + 2 * kPrefetchBytes);
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      store_as(out + v * kLanes * 4, widen_bytes(values + v * kLanes) * scale[v]);
    }
  }
}

#if defined(__AMX_BF16__)
/// Which of 64 bytes go to the second byte of each word: 16 of them from `first` on.
struct ByteToWord {
  alignas(64) uint8_t from[64] = {};
  constexpr explicit ByteToWord(int first) {
    for (int word = 0; word < kLanes; ++word) from[word * 4 + 1] = static_cast<uint8_t>(first + word);
  }
};
constexpr ByteToWord kByteToWord[] = {ByteToWord(0), ByteToWord(16), ByteToWord(32), ByteToWord(48)};

/// A group of a panel as bf16, in tiles as kernels.h has them: [4][16 steps][16][2]. A byte of 128 more than its value
/// in the second byte of 32768.0f makes 32768 + 128 + value of it, so that one multiply-add without rounding widens and
/// scales: both products are exact, for scales up to 1e34.
MILLRACE_INLINE void expand_bf16(const char* group, char* out) {
  constexpr int kVecs = kPanelColumns / kLanes;
  constexpr size_t kColumnTileBytes = kW8GroupElements / 2 * kLanes * 4;
  constexpr size_t kW8Ahead = 2048;  // asked for before it is written out
  constexpr float kBase = 32768.0f;
  constexpr __mmask64 kSecondBytes = 0x2222222222222222;
  Vec scale[kVecs][2];  // of columns 0 to 7 of each vector, each twice, and of 8 to 15
  Vec base[kVecs][2];   // what the base and 128 come to
#pragma clang loop unroll(full)
  for (int v = 0; v < kVecs; ++v) {
    const Vec all = group_scale(group, v);
    scale[v][0] = __builtin_shufflevector(all, all, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    scale[v][1] = __builtin_shufflevector(all, all, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
#pragma clang loop unroll(full)
    for (int half = 0; half < 2; ++half) base[v][half] = scale[v][half] * -(kBase + 128.0f);
  }
  const auto sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const auto words_of_base = reinterpret_cast<__m512i>(splat(kBase));
  const char* values = group + kW8ScaleBytes;
  for (int step = 0; step < kW8GroupElements / 2; ++step, values += kPanelColumns * 2, out += kLanes * 4) {
    __builtin_prefetch(values + kW8Ahead, 0, kIntoSecondLevel);
    __builtin_prefetch(values + kW8Ahead + 64, 0, kIntoSecondLevel);
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; v += 2) {
      const auto bytes = load_as<__m512i>(values + v * 2 * kLanes) ^ sign;
      Vec value[4];
#pragma clang loop unroll(full)
      for (int quarter = 0; quarter < 4; ++quarter) {
        const auto from = load_as<__m512i>(kByteToWord[quarter].from);
        const Vec word = reinterpret_cast<Vec>(_mm512_mask_permutexvar_epi8(words_of_base, kSecondBytes, from, bytes));
        value[quarter] = fma(word, scale[v + quarter / 2][quarter % 2], base[v + quarter / 2][quarter % 2]);
      }
#pragma clang loop unroll(full)
      for (int half = 0; half < 2; ++half) {
        store_as(out + (v + half) * kColumnTileBytes, _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(value[half * 2 + 1]),
                                                                          reinterpret_cast<__m512>(value[half * 2])));
      }
    }
  }
}
#endif

template <class Format>
MILLRACE_INLINE void expand_groups(const char* groups, int64_t steps, char* out) {
  constexpr int64_t kGroupSteps = kW8GroupElements / Format::kDepth;
  for (int64_t step = 0; step < steps; step += kGroupSteps) {
    if constexpr (Format::kDepth == 1) {
      expand_f32(groups, out);
    } else {
#if defined(__AMX_BF16__)
      expand_bf16(groups, out);
#endif
    }
    groups += kW8GroupBytes;
    out += kGroupSteps * kPanelColumns * 4;
  }
}

/// What a tile of R rows over the scratch asks for: a part of what is written out later on, while the memory would be
/// idle. expand_groups() asks for what comes before that.
template <class Format, int R>
MILLRACE_INLINE Prefetch ahead_of_w8_tile(const ProductTask& task, const char* groups, int row) {
  constexpr int64_t kGroupSteps = kW8GroupElements / Format::kDepth;
  constexpr size_t kBlockBytes = kShortSteps / kGroupSteps * kW8GroupBytes;
  constexpr size_t kAhead = (2 * kPrefetchBytes / kBlockBytes + 2) * kBlockBytes;
  const Share share = share_of_tile(kBlockBytes, kW8GroupBytes / kGroupSteps, row, R, task.rows);
  return {AskFor::kNextBlock, groups + kAhead + share.first, share.step};
}

template <class Format>
void product_w8(const ProductTask& task) {
  constexpr int64_t kGroupSteps = kW8GroupElements / Format::kDepth;
  static_assert(kShortSteps % kGroupSteps == 0 && kShortSteps <= kW8ScratchSteps);
  const bool few = task.rows <= kFewW8Rows;
  const int64_t block = !kWideTiles || few ? kShortSteps : kLongW8Steps;
  const auto* left = reinterpret_cast<const char*>(task.left);
  auto* scratch = reinterpret_cast<char*>(task.scratch);
  for (int64_t step = 0; step < task.steps; step += block) {
    const int64_t count = task.steps - step < block ? task.steps - step : block;
    const char* groups = reinterpret_cast<const char*>(task.panel) + step / kGroupSteps * kW8GroupBytes;
    expand_groups<Format>(groups, count, scratch);
    const char* a = left + static_cast<size_t>(step) * Format::kLeftStep;
    for_row_tiles(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* tile_left = a + static_cast<size_t>(row) * task.left_stride;
      float* c = task.c + row * kPanelColumns;
      if (kWideTiles && few) {
        product_tile<Format, R, AskFor::kNextBlock>(tile_left, task.left_stride, scratch, count, c, step == 0,
                                                    ahead_of_w8_tile<Format, R>(task, groups, row));
      } else {
        product_tile<Format, R, AskFor::kNothing>(tile_left, task.left_stride, scratch, count, c, step == 0, {});
      }
    });
  }
}

}  // namespace
}  // namespace millrace::cpu
