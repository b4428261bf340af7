#pragma once

// Gathers groups of 16 keys and values from tokens at any address, and sums an indexer's scores of them. Included only
// by kernels.cc.

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace millrace::cpu {
namespace {

/// Performs one step of a transpose. It exchanges the lanes of `upper` whose index has the bit with the lanes of
/// `lower` that lack it.
template <int kBit>
MILLRACE_INLINE void exchange(Bits& upper, Bits& lower) {
  const Bits a = upper;
  const Bits b = lower;
  if constexpr (kBit == 8) {
    upper = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    lower = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  } else if constexpr (kBit == 4) {
    upper = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    lower = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  } else if constexpr (kBit == 2) {
    upper = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    lower = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  } else {
    upper = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    lower = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
}

template <int kBit>
MILLRACE_INLINE void transpose_step(Bits (&rows)[kGroupKeys]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < kGroupKeys; ++i) {
    if ((i & kBit) == 0) exchange<kBit>(rows[i], rows[i + kBit]);
  }
}

/// Computes out[word][lane] = keys[lane][word], with the words `stride` bytes apart. A word is one f32 channel or two
/// bf16 channels.
void gather_keys(const std::byte* const* keys, int words, std::byte* out, size_t stride) {
  for (int word = 0; word < words; word += kLanes) {
    Bits rows[kGroupKeys];
    const int part = words - word < kLanes ? words - word : kLanes;
#pragma clang loop unroll(full)
    for (int lane = 0; lane < kGroupKeys; ++lane) {
      rows[lane] = Bits{};
      __builtin_memcpy(&rows[lane], keys[lane] + word * 4, static_cast<size_t>(part) * 4);
    }
    transpose_step<8>(rows);
    transpose_step<4>(rows);
    transpose_step<2>(rows);
    transpose_step<1>(rows);
    for (int i = 0; i < part; ++i) store_as(out + static_cast<size_t>(word + i) * stride, rows[i]);
  }
}

/// Computes out[pair of values][channel][2] in bf16.
void gather_values_bf16(const std::byte* const* values, int value_dim, std::byte* out) {
  for (int pair = 0; pair < kGroupKeys / 2; ++pair) {
    for (int channel = 0; channel < value_dim; channel += kLanes) {
      const Bits even = __builtin_convertvector(load_as<Halves>(values[2 * pair] + channel * 2), Bits);
      const Bits odd = __builtin_convertvector(load_as<Halves>(values[2 * pair + 1] + channel * 2), Bits);
      store_as(out + (pair * value_dim + channel) * 4, even | (odd << 16));
    }
  }
}

void weigh_scores(const float* scores, const float* weights, int heads, float* out) {
  Vec sums[kBlockGroups] = {};
  for (int head = 0; head < heads; ++head, scores += kBlockKeys) {
    const Vec weight = splat(weights[head]);
#pragma clang loop unroll(full)
    for (int v = 0; v < kBlockGroups; ++v) {
      const Vec score = load(scores + v * kLanes);
      sums[v] += weight * (Vec{} > score ? Vec{} : score);
    }
  }
  for (int v = 0; v < kBlockGroups; ++v) store(out + v * kLanes, sums[v]);
}

}  // namespace
}  // namespace millrace::cpu
