#pragma once

// One block of 64 latents of streaming softmax attention, read where they lie. Included only by kernels.cc.
//
// A latent is key and value in one, so that copies in the order of K and V groups would take as long as a fourth of the
// products of 16 heads. Scores take the rows of queries as lanes and broadcast pairs of a latent's channels. Values
// join two tokens in registers, once for up to 20 rows. The order of every sum is that of attention_block.

#include "cpu/attention_kernel.h"
#include "cpu/gather_kernel.h"

namespace millrace::cpu {
namespace {

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)

/// Rows that share a pass over the values, with one vector of sums each.
constexpr int kLatentTileRows = 20;

/// Returns 16 copies of a pair of bf16.
MILLRACE_INLINE __m512bh broadcast_pair(const char* from) {
  return reinterpret_cast<__m512bh>(Bits{} + load_as<uint32_t>(from));
}

MILLRACE_INLINE Vec add_pairs(Vec sum, __m512bh a, __m512bh b) {
  return reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), a, b));
}

/// The addresses of eight tokens at a distance of `one`: multiples that an address mode supports, of values that stay
/// in registers.
struct TokenStrides {
  size_t one;
  size_t three;
  size_t five;
  size_t seven;

  explicit MILLRACE_INLINE TokenStrides(size_t stride)
      : one(stride), three(3 * stride), five(5 * stride), seven(7 * stride) {
    asm("" : "+r"(three), "+r"(five), "+r"(seven));
  }
  [[nodiscard]] MILLRACE_INLINE size_t to(int token) const {
    if (token == 3) return three;
    if (token == 5) return five;
    if (token == 6) return 2 * three;
    return token == 7 ? seven : static_cast<size_t>(token) * one;
  }
};

/// Computes the scores of a band of 16 rows against a group: out[token], with rows as lanes. It prefetches as many
/// bytes from `ahead` as the group has.
MILLRACE_INLINE void score_latents(const char* q, const char* tokens, const char* ahead, int padded_dim,
                                   Vec (&out)[kGroupKeys]) {
  const size_t stride = static_cast<size_t>(padded_dim) * 2;
  const TokenStrides strides(stride);
  const char* low = tokens;
  const char* high = tokens + 8 * stride;
  for (int step = 0; step < padded_dim / 2; ++step) {
    const auto queries = load_as<__m512bh>(q);
    __builtin_prefetch(ahead, 0, kPrefetchToL2);
#pragma clang loop unroll(full)
    for (int t = 0; t < kGroupKeys; ++t) {
      out[t] = add_pairs(out[t], queries, broadcast_pair((t < 8 ? low : high) + strides.to(t % 8)));
    }
    q += kLanes * 4;
    ahead += 64;
    low += 4;
    high += 4;
  }
}

/// Computes the scores of up to 16 rows from `row` on, of which the band begins there.
MILLRACE_INLINE void score_band(const QueryTile& rows, const KvBlock& block, int row) {
  const int count = rows.rows - row < kBandRows ? rows.rows - row : kBandRows;
  const char* q =
      reinterpret_cast<const char*>(rows.q) + static_cast<size_t>(row) * static_cast<size_t>(rows.padded_dim) * 2;
  const int groups = visible_groups(rows, row + count - 1, block.first_key);
  for (int group = 0; group < groups; ++group) {
    Vec scores[kGroupKeys] = {};
    const char* tokens = reinterpret_cast<const char*>(block.k[group]);
    score_latents(q, tokens, row == 0 ? reinterpret_cast<const char*>(block.next_k[group]) : tokens, rows.padded_dim,
                  scores);
    Bits lanes[kGroupKeys];
#pragma clang loop unroll(full)
    for (int t = 0; t < kGroupKeys; ++t) lanes[t] = reinterpret_cast<Bits>(scores[t]);
    transpose_step<8>(lanes);
    transpose_step<4>(lanes);
    transpose_step<2>(lanes);
    transpose_step<1>(lanes);
    for (int r = 0; r < count; ++r) store_as(rows.scores + (row + r) * kBlockKeys + group * kGroupKeys, lanes[r]);
  }
}

/// Returns 16 channels of two tokens as pairs.
MILLRACE_INLINE __m512bh join_tokens(const char* even, const char* odd) {
  const auto a = load_as<Halves>(even);
  const auto b = load_as<Halves>(odd);
  return reinterpret_cast<__m512bh>(__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                                            23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                                            15, 31));
}

/// Computes acc[row] = acc[row] · factor[row] + Σ_token p[row][token] · latent[token] for `V` vectors of channels.
template <int R, int V>
MILLRACE_INLINE void add_latents(const QueryTile& rows, const KvBlock& block, const float* factor, bool scales, int row,
                                 int groups, int channel) {
  constexpr size_t kLhsStride = kBlockKeys * sizeof(float);
  const size_t stride = static_cast<size_t>(rows.padded_dim) * 2;
  float* c = rows.state.acc + row * rows.value_dim + channel;
  Vec acc[R][V];
  load_tile(acc, c, static_cast<size_t>(rows.value_dim));
  if (scales) {
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r) {
#pragma clang loop unroll(full)
      for (int v = 0; v < V; ++v) acc[r][v] *= factor[row + r];
    }
  }
  const char* p = reinterpret_cast<const char*>(rows.scores) + static_cast<size_t>(row) * kLhsStride;
  for (int group = 0; group < groups; ++group) {
    const char* tokens = reinterpret_cast<const char*>(block.v[group]) + channel * 2;
    for (int pair = 0; pair < kGroupKeys / 2; ++pair) {
      __m512bh b[V];
#pragma clang loop unroll(full)
      for (int v = 0; v < V; ++v) b[v] = join_tokens(tokens + v * 32, tokens + stride + v * 32);
      __builtin_prefetch(tokens + 64, 0, kPrefetchToL1);
      __builtin_prefetch(tokens + stride + 64, 0, kPrefetchToL1);
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) {
#pragma clang loop unroll(full)
        for (int v = 0; v < V; ++v) {
          acc[r][v] = add_pairs(acc[r][v], b[v], broadcast_pair(p + static_cast<size_t>(r) * kLhsStride));
        }
      }
      p += 4;
      tokens += 2 * stride;
    }
  }
  store_tile(acc, c, static_cast<size_t>(rows.value_dim));
}

template <int R>
MILLRACE_INLINE void add_latent_channels(const QueryTile& rows, const KvBlock& block, const float* factor, int row,
                                         int groups) {
  bool scales = false;
  for (int r = row; r < row + R; ++r) scales |= factor[r] != 1.0f;
  int channel = 0;
  if constexpr (R <= kLatentTileRows / 2) {
    for (; channel + 2 * kLanes <= rows.value_dim; channel += 2 * kLanes)
      add_latents<R, 2>(rows, block, factor, scales, row, groups, channel);
  }
  for (; channel < rows.value_dim; channel += kLanes)
    add_latents<R, 1>(rows, block, factor, scales, row, groups, channel);
}

void attention_block_latents(const QueryTile& rows, const KvBlock& block) {
  for (int row = 0; row < rows.rows; row += kBandRows) score_band(rows, block, row);
  float factor[kMaxQueryTileRows];
  NoInterleavedWork nothing;
  for (int row = 0; row < rows.rows; row += kBandRows) {
    softmax_band<Bf16Format>(rows, band_at(rows, row, block.first_key), block.first_key, factor + row, nothing);
  }
  // Rows share a pass if they see the same groups, so that none adds zeros of groups that it does not see.
  for (int begin = 0, end = 0; begin < rows.rows; begin = end) {
    const int groups = visible_groups(rows, begin, block.first_key);
    while (end < rows.rows && visible_groups(rows, end, block.first_key) == groups) ++end;
    for_row_tiles<kLatentTileRows>(end - begin, [&](auto count, int row) {
      add_latent_channels<decltype(count)::kCount>(rows, block, factor, begin + row, groups);
    });
  }
}

#endif

}  // namespace
}  // namespace millrace::cpu
