#pragma once

// Attention on tile registers (AMX). Included only by kernels.cc.

#include "cpu/amx_kernel.h"
#include "cpu/attention_kernel.h"

namespace millrace::cpu {
namespace {

/// Configures `rows` rows of the LHS tile 4 and of the sums. Tile 5 holds probabilities of 16 keys, tile 7 as many
/// values.
MILLRACE_INLINE void configure_attention(int rows) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) config.rows[tile] = static_cast<uint8_t>(rows);
  config.row_bytes[5] = 32;
  config.rows[7] = 8;
  _tile_loadconfig(&config);
}

static_assert(kBandRows == kTileHeight);

/// Prefetches the next block's keys and values in memory order, a few lines between steps of the tiles' and the
/// softmax's work. Memory would idle without prefetches, and a burst of them would stall.
class KvPrefetcher {
 public:
  static constexpr int kPrefetchesPerGemm = 2;

  /// `key_bytes` and `value_bytes` are those of a group, without values 0. The lines are divided by `turns` prefetches.
  MILLRACE_INLINE KvPrefetcher(const KvBlock& block, int key_bytes, int value_bytes, int turns)
      : block_(block), key_bytes_(key_bytes), value_bytes_(value_bytes), turns_(turns) {
    const int lines = kBlockGroups * (key_bytes_ + value_bytes_) / 64;
    lines_ = lines / turns_;
    rest_ = lines % turns_;
    begin_group(0);
  }

  /// Prefetches before a tile multiplication.
  MILLRACE_INLINE void prefetch_at_gemm() {
    for (int turn = 0; turn < kPrefetchesPerGemm; ++turn) prefetch();
  }

  /// Prefetches once per 16 probabilities.
  MILLRACE_INLINE void prefetch() {
    for (int line = 0; line < lines_; ++line) prefetch_line(64);
    due_ += rest_;
    const bool one_more = due_ >= turns_;
    due_ -= one_more ? turns_ : 0;
    prefetch_line(one_more ? 64 : 0);  // a repeated prefetch costs less than an unpredictable branch
  }

 private:
  MILLRACE_INLINE void prefetch_line(int step) {
    __builtin_prefetch(at_, 0, kPrefetchToL2);
    at_ += step;
    if (at_ == end_) begin_group(group_ + 1);
  }

  MILLRACE_INLINE void begin_group(int group) {
    if (group == (value_bytes_ > 0 ? 2 : 1) * kBlockGroups) {  // all lines are prefetched
      lines_ = 0;
      rest_ = 0;
      group = 0;
    }
    group_ = group;
    at_ = reinterpret_cast<const char*>(group < kBlockGroups ? block_.next_k[group]
                                                             : block_.next_v[group - kBlockGroups]);
    end_ = at_ + (group < kBlockGroups ? key_bytes_ : value_bytes_);
  }

  const KvBlock& block_;
  int key_bytes_;  // of a group
  int value_bytes_;
  int turns_;
  int lines_;  // per turn, and `rest_` more in all
  int rest_;
  int due_ = 0;    // turns' parts of a line
  int group_ = 0;  // K, then V
  const char* at_ = nullptr;
  const char* end_ = nullptr;
};

/// A group of keys, and the 64 channels from `channel` on.
struct ValueStep {
  int channel = 0;
  int group = 0;
};

/// The multiplications of a band with a block. Tiles 0 to 3 hold the sums.
struct BandTiles {
  const QueryTile& rows;
  const KvBlock& block;
  KvPrefetcher& next;
  SoftmaxBand band = {};

  /// Adds to a group's sums the queries in tile 4 times the group's keys, 32 channels of both.
  template <int kGroup>
  MILLRACE_INLINE void score_group(size_t at) const {
    next.prefetch_at_gemm();
    if (kGroup >= band.groups) return;
    _tile_loadd(6, reinterpret_cast<const char*>(block.k[kGroup]) + at, 64);
    _tile_dpbf16ps(kGroup, 4, 6);
  }

  template <int kGroup>
  MILLRACE_INLINE void store_scores() const {
    if (kGroup < band.groups) {
      _tile_stored(kGroup, rows.scores + band.first * kBlockKeys + kGroup * kGroupKeys, kBlockKeys * 4);
    }
  }

  /// Multiplies queries by keys.
  MILLRACE_INLINE void score() const {
    if (band.groups == 0) return;
    const size_t stride = static_cast<size_t>(rows.padded_dim) * 2;
    const char* const q = reinterpret_cast<const char*>(rows.q) + static_cast<size_t>(band.first) * stride;
    clear_sums();
    for (int channel = 0; channel < rows.padded_dim; channel += 32) {
      const size_t at = static_cast<size_t>(channel) * 32;  // bytes: 16 keys of 2 per channel
      _tile_loadd(4, q + channel * 2, stride);
      score_group<0>(at);
      score_group<1>(at);
      score_group<2>(at);
      score_group<3>(at);
    }
    store_scores<0>();
    store_scores<1>();
    store_scores<2>();
    store_scores<3>();
  }

  /// Returns the steps that add probabilities times values to the accumulators. A step covers a group of keys for 64
  /// channels, or for the remaining 32.
  [[nodiscard]] MILLRACE_INLINE int value_steps() const { return (rows.value_dim + 63) / 64 * band.groups; }

  MILLRACE_INLINE void add_values(ValueStep& step) const {
    const bool wide = step.channel + 64 <= rows.value_dim;
    wide ? add_group<true>(step) : add_group<false>(step);
    if (++step.group == band.groups) step = {step.channel + 64, 0};
  }

  template <bool kWide>
  MILLRACE_INLINE void add_group(const ValueStep& at) const {
    const size_t stride = static_cast<size_t>(rows.value_dim) * 4;  // of accumulators and of a step of values
    const char* const p = reinterpret_cast<const char*>(rows.scores + band.first * kBlockKeys);
    float* const acc = rows.state.acc + band.first * rows.value_dim + at.channel;
    if (at.group == 0) {
      _tile_loadd(0, acc, stride);
      _tile_loadd(1, acc + 16, stride);
      if constexpr (kWide) {
        _tile_loadd(2, acc + 32, stride);
        _tile_loadd(3, acc + 48, stride);
      }
    }
    const size_t column = static_cast<size_t>(at.channel) * 4;
    const char* const values = reinterpret_cast<const char*>(block.v[at.group]) + column;
    _tile_loadd(5, p + at.group * 32, kBlockKeys * 4);
    next.prefetch_at_gemm();
    _tile_loadd(7, values, stride);
    _tile_dpbf16ps(0, 5, 7);
    next.prefetch_at_gemm();
    _tile_loadd(7, values + 64, stride);
    _tile_dpbf16ps(1, 5, 7);
    if constexpr (kWide) {
      next.prefetch_at_gemm();
      _tile_loadd(7, values + 128, stride);
      _tile_dpbf16ps(2, 5, 7);
      next.prefetch_at_gemm();
      _tile_loadd(7, values + 192, stride);
      _tile_dpbf16ps(3, 5, 7);
    }
    if (at.group == band.groups - 1) {
      _tile_stored(0, acc, stride);
      _tile_stored(1, acc + 16, stride);
      if constexpr (kWide) {
        _tile_stored(2, acc + 32, stride);
        _tile_stored(3, acc + 48, stride);
      }
    }
  }

  /// Rescales the accumulators to the new maxima.
  MILLRACE_INLINE void scale_sums(const float* factor) const {
    if (!any_lane(load(factor) != splat(1.0f))) return;
    for (int r = 0; r < band.count; ++r) {
      float* const acc = rows.state.acc + (band.first + r) * rows.value_dim;
      for (int i = 0; i < rows.value_dim; i += kLanes) store(acc + i, load(acc + i) * factor[r]);
    }
  }

  template <class InterleavedWork>
  MILLRACE_INLINE void apply_softmax(InterleavedWork& interleaved) const {
    alignas(64) float factor[kBandRows];
    softmax_band<Bf16Format>(rows, band, block.first_key, factor, interleaved);
    scale_sums(factor);
  }
};

/// Overlaps a band's softmax, which uses the vector units, with tiles: scores of the next band, then values of the
/// previous one.
struct InterleavedBand {
  const BandTiles& before;
  const BandTiles& after;
  ValueStep step = {};
  int steps = before.value_steps();
  int done = 0;

  MILLRACE_INLINE void at_row(int r) {
    if (r == 0) after.score();
    for (const int so_far = steps * r / (kBandRows - 1); done < so_far; ++done) before.add_values(step);
  }
  MILLRACE_INLINE void at_vector() { before.next.prefetch(); }
};

/// Processes whole bands in the rows [begin, end), or one smaller band.
MILLRACE_INLINE void attend_bands(const QueryTile& rows, const KvBlock& block, KvPrefetcher& next, int begin, int end) {
  BandTiles before{rows, block, next};
  BandTiles band{rows, block, next, band_at(rows, begin, block.first_key)};
  BandTiles after{rows, block, next};
  band.score();
  for (int row = begin; row < end; row += kBandRows) {
    after.band = row + kBandRows < end ? band_at(rows, row + kBandRows, block.first_key) : SoftmaxBand();
    InterleavedBand interleaved{before, after};
    band.apply_softmax(interleaved);
    before.band = band.band;
    band.band = after.band;
  }
  ValueStep step;
  for (int remaining = before.value_steps(); remaining > 0; --remaining) before.add_values(step);
}

/// Prefetches as the bands of attention_block_amx go on.
MILLRACE_INLINE KvPrefetcher prefetcher_of_groups(const QueryTile& rows, const KvBlock& block) {
  const int bands = (rows.rows + kBandRows - 1) / kBandRows;
  const int products = rows.padded_dim / 32 * kBlockGroups + rows.value_dim / kLanes * kBlockGroups;
  return {block, kGroupKeys * rows.padded_dim * 2, kGroupKeys * rows.value_dim * 2,
          rows.rows * (kBlockKeys / kLanes) + bands * products * KvPrefetcher::kPrefetchesPerGemm};
}

void attention_block_amx(const QueryTile& rows, const KvBlock& block) {
  if (block.is_first) configure_attention(rows.rows < kTileHeight ? rows.rows : kTileHeight);
  const int whole = rows.rows / kTileHeight * kTileHeight;
  KvPrefetcher next = prefetcher_of_groups(rows, block);
  if (whole == 0 || whole == rows.rows) {
    attend_bands(rows, block, next, 0, rows.rows);
  } else {
    attend_bands(rows, block, next, 0, whole);
    configure_attention(rows.rows - whole);
    attend_bands(rows, block, next, whole, rows.rows);
    configure_attention(kTileHeight);
  }
  if (block.is_last) _tile_release();
}

}  // namespace
}  // namespace millrace::cpu
