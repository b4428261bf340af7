#pragma once

// Attention over latents on tile registers (AMX), read where they lie. Included only by kernels.cc.
//
// Scores take 16 tokens as the left operand and a band of 16 queries as columns. Left rows and columns may change
// places: the products of a step are summed in the same order. Values need pairs of tokens, which are joined 32
// channels at a time and stay in the first-level cache. A tile of probabilities has 32 keys.

#include "cpu/amx_attention_kernel.h"
#include "cpu/gather_kernel.h"

namespace millrace::cpu {
namespace {

/// Channels of a tile of tokens, and those of values that are joined together.
constexpr int kLatentChannels = 32;
/// Keys of a tile of probabilities.
constexpr int kLatentKeys = 32;

/// Tiles 0 and 1 hold sums of 16 rows, 2 and 3 those of the last `rest` rows. So do probabilities in tiles 4 and 5.
MILLRACE_INLINE void configure_latent_values(int rest) {
  TileConfig config;
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(rest);
  _tile_loadconfig(&config);
}

/// Computes the scores of a band step by step, so that they overlap with the softmax of the band before it. Tiles 0 to
/// 3 hold the sums of a group each, [16 tokens][16 queries].
struct LatentScores {
  const QueryTile& rows;
  const KvBlock& block;
  KvPrefetcher& next;
  SoftmaxBand band = {};
  int steps = band.groups == 0 ? 0 : rows.padded_dim / kLatentChannels;
  int done = 0;

  MILLRACE_INLINE void at_row(int r) {
    if (r == 0) clear_sums();
    run_until(steps * r / (kBandRows - 1));
  }
  MILLRACE_INLINE void at_vector() { next.prefetch(); }

  /// Stores the scores, once all steps are done.
  MILLRACE_INLINE void finish() {
    alignas(64) float sums[kBlockGroups][kGroupKeys][kBandRows];
    run_until(steps);
    if (band.groups > 0) _tile_stored(0, sums[0], kTileStride);
    if (band.groups > 1) _tile_stored(1, sums[1], kTileStride);
    if (band.groups > 2) _tile_stored(2, sums[2], kTileStride);
    if (band.groups > 3) _tile_stored(3, sums[3], kTileStride);
    for (int group = 0; group < band.groups; ++group) store_group(sums[group], group);
  }

 private:
  MILLRACE_INLINE void run_until(int end) {
    const char* const q = reinterpret_cast<const char*>(rows.q) +
                          static_cast<size_t>(band.first) * static_cast<size_t>(rows.padded_dim) * 2;
    for (; done < end; ++done) {
      _tile_loadd(6, q + static_cast<size_t>(done) * kTileBytes, kTileStride);
      add_group<0>();
      add_group<1>();
      add_group<2>();
      add_group<3>();
    }
  }

  template <int kGroup>
  MILLRACE_INLINE void add_group() const {
    next.prefetch_at_gemm();
    if (kGroup >= band.groups) return;
    const char* const tokens = reinterpret_cast<const char*>(block.k[kGroup]);
    _tile_loadd(4 + kGroup % 2, tokens + done * kLatentChannels * 2, static_cast<size_t>(rows.padded_dim) * 2);
    _tile_dpbf16ps(kGroup, 4 + kGroup % 2, 6);
  }

  /// Turns a group's sums into rows of scores.
  MILLRACE_INLINE void store_group(const float (&sums)[kGroupKeys][kBandRows], int group) const {
    Bits lanes[kGroupKeys];
#pragma clang loop unroll(full)
    for (int t = 0; t < kGroupKeys; ++t) lanes[t] = load_as<Bits>(sums[t]);
    transpose_step<8>(lanes);
    transpose_step<4>(lanes);
    transpose_step<2>(lanes);
    transpose_step<1>(lanes);
    for (int r = 0; r < band.count; ++r)
      store_as(rows.scores + (band.first + r) * kBlockKeys + group * kGroupKeys, lanes[r]);
  }
};

/// 32 channels of a block's tokens in pairs: the tiles of its first 16 channels, then those of the others.
struct alignas(64) LatentPairs {
  char tiles[2][kBlockKeys / 2][64];
};

/// Joins the tokens of the first groups. Channels are put in the order in which an instruction joins them, so that
/// four shuffles give two lines of pairs.
MILLRACE_INLINE void join_latents(const QueryTile& rows, const KvBlock& block, int channel, int groups,
                                  LatentPairs& out) {
  typedef uint64_t Quads __attribute__((vector_size(64)));
  typedef uint16_t Words __attribute__((vector_size(64)));
  const size_t stride = static_cast<size_t>(rows.padded_dim) * 2;
  const auto ordered = [](const char* from) __attribute__((always_inline)) {
    const auto quads = load_as<Quads>(from);
    return reinterpret_cast<Words>(__builtin_shufflevector(quads, quads, 0, 4, 1, 5, 2, 6, 3, 7));
  };
  for (int group = 0; group < groups; ++group) {
    const char* token = reinterpret_cast<const char*>(block.v[group]) + channel * 2;
#pragma clang loop unroll(full)
    for (int pair = 0; pair < kGroupKeys / 2; ++pair, token += 2 * stride) {
      const Words a = ordered(token);
      const Words b = ordered(token + stride);
      const int line = group * (kGroupKeys / 2) + pair;
      store_as(out.tiles[0][line],
               __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16, 48, 17, 49,
                                       18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59));
      store_as(out.tiles[1][line],
               __builtin_shufflevector(a, b, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47, 20, 52, 21, 53,
                                       22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63));
    }
  }
}

/// Adds to the sums of a band its probabilities times 32 channels of values, `kRest` for a band of fewer rows.
template <bool kRest>
MILLRACE_INLINE void add_joined(const QueryTile& rows, int row, int channel, int steps, const LatentPairs& pairs,
                                KvPrefetcher& next) {
  constexpr int kSum = kRest ? 2 : 0;
  constexpr int kLeft = kRest ? 5 : 4;
  const size_t stride = static_cast<size_t>(rows.value_dim) * 4;
  const char* const p = reinterpret_cast<const char*>(rows.scores + row * kBlockKeys);
  float* const acc = rows.state.acc + row * rows.value_dim + channel;
  _tile_loadd(kSum, acc, stride);
  _tile_loadd(kSum + 1, acc + kLanes, stride);
  for (int step = 0; step < steps; ++step) {
    next.prefetch_at_gemm();
    next.prefetch_at_gemm();
    _tile_loadd(kLeft, p + step * kLatentKeys * 2, kBlockKeys * 4);
    _tile_loadd(6, pairs.tiles[0][step * kLatentKeys / 2], kTileStride);
    _tile_dpbf16ps(kSum, kLeft, 6);
    _tile_loadd(7, pairs.tiles[1][step * kLatentKeys / 2], kTileStride);
    _tile_dpbf16ps(kSum + 1, kLeft, 7);
  }
  _tile_stored(kSum, acc, stride);
  _tile_stored(kSum + 1, acc + kLanes, stride);
}

/// Adds the values of all bands. The next channels are joined while tiles multiply.
MILLRACE_INLINE void add_latent_values(const QueryTile& rows, const KvBlock& block, KvPrefetcher& next) {
  const int steps = (visible_groups(rows, rows.rows - 1, block.first_key) * kGroupKeys + kLatentKeys - 1) / kLatentKeys;
  if (steps == 0) return;
  const int groups = steps * kLatentKeys / kGroupKeys;
  LatentPairs pairs[2];
  join_latents(rows, block, 0, groups, pairs[0]);
  for (int channel = 0, turn = 0; channel < rows.value_dim; channel += kLatentChannels, turn ^= 1) {
    const int after = channel + kLatentChannels;
    if (after < rows.value_dim) join_latents(rows, block, after, groups, pairs[turn ^ 1]);
    int row = 0;
    for (; row + kTileHeight <= rows.rows; row += kTileHeight)
      add_joined<false>(rows, row, channel, steps, pairs[turn], next);
    if (row < rows.rows) add_joined<true>(rows, row, channel, steps, pairs[turn], next);
  }
}

void attention_block_latents_amx(const QueryTile& rows, const KvBlock& block) {
  const int rest = rows.rows % kTileHeight;
  if (block.is_first || rest != 0) configure_gemm(kTileHeight);
  const int bands = (rows.rows + kBandRows - 1) / kBandRows;
  const int products = (rows.padded_dim + rows.value_dim) / kLatentChannels * kBlockGroups;
  KvPrefetcher next(block, kGroupKeys * rows.padded_dim * 2, 0,
                    rows.rows * kBlockGroups + bands * products * KvPrefetcher::kPrefetchesPerGemm);
  const auto band_from = [&](int row) __attribute__((always_inline)) {
    return row < rows.rows ? band_at(rows, row, block.first_key) : SoftmaxBand();
  };
  LatentScores first{rows, block, next, band_from(0)};
  first.at_row(0);
  first.finish();
  for (int row = 0; row < rows.rows; row += kBandRows) {
    LatentScores after{rows, block, next, band_from(row + kBandRows)};
    BandTiles{rows, block, next, band_from(row)}.apply_softmax(after);
    after.finish();
  }
  if (rest != 0) configure_latent_values(rest);
  add_latent_values(rows, block, next);
  if (block.is_last) _tile_release();
}

}  // namespace
}  // namespace millrace::cpu
