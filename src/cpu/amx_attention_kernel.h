#pragma once

// Attention on tile registers (AMX). Included only by kernels.cc.

#include <type_traits>

#include "cpu/amx_kernel.h"
#include "cpu/attention_kernel.h"

namespace millrace::cpu {
namespace {

/// `rows` of left tile 4 and of the sums; tile 5 holds probabilities of 16 keys, tile 7 as many values.
MILLRACE_INLINE void configure_attention(int rows) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) config.rows[tile] = static_cast<uint8_t>(rows);
  config.row_bytes[5] = 32;
  config.rows[7] = 8;
  _tile_loadconfig(&config);
}

/// Asks for what a tile of `lines` lines of the next block will hold.
template <bool kPrefetch>
MILLRACE_INLINE void ask_for_tile(const std::byte* tile, int lines, size_t stride) {
  if constexpr (kPrefetch) {
    for (int line = 0; line < lines; ++line) __builtin_prefetch(tile + static_cast<size_t>(line) * stride);
  }
}

/// Scores of up to 16 query rows with the four groups of keys.
template <bool kPrefetch>
MILLRACE_INLINE void tile_scores(const AttentionRows& rows, const KeyBlock& block, int row) {
  const size_t stride = static_cast<size_t>(rows.padded_dim) * 2;
  const char* q = reinterpret_cast<const char*>(rows.q) + static_cast<size_t>(row) * stride;
  clear_sums();
  for (int channel = 0; channel < rows.padded_dim; channel += 32) {
    const size_t at = static_cast<size_t>(channel) * 32;  // bytes: 16 keys of 2 per channel
    _tile_loadd(4, q + channel * 2, stride);
    const auto score = [&](auto sum) __attribute__((always_inline)) {
      constexpr int kGroup = decltype(sum)::value;
      ask_for_tile<kPrefetch>(block.next_k[kGroup] + at, 16, 64);
      _tile_loadd(6, block.k[kGroup] + at, 64);
      _tile_dpbf16ps(kGroup, 4, 6);
    };
    score(std::integral_constant<int, 0>());
    score(std::integral_constant<int, 1>());
    score(std::integral_constant<int, 2>());
    score(std::integral_constant<int, 3>());
  }
  float* scores = rows.scores + row * kBlockKeys;
  _tile_stored(0, scores, kBlockKeys * 4);
  _tile_stored(1, scores + 16, kBlockKeys * 4);
  _tile_stored(2, scores + 32, kBlockKeys * 4);
  _tile_stored(3, scores + 48, kBlockKeys * 4);
}

/// Adds probabilities times values to the accumulators of up to 16 rows, 32 channels at a time.
template <bool kPrefetch>
MILLRACE_INLINE void tile_values(const AttentionRows& rows, const KeyBlock& block, int row) {
  const size_t stride = static_cast<size_t>(rows.padded_dim) * 4;  // of accumulators and of a step of values
  const char* p = reinterpret_cast<const char*>(rows.scores + row * kBlockKeys);
  for (int channel = 0; channel < rows.padded_dim; channel += 32) {
    float* acc = rows.state.acc + row * rows.padded_dim + channel;
    const size_t at = static_cast<size_t>(channel) * 4;
    _tile_loadd(0, acc, stride);
    _tile_loadd(1, acc + 16, stride);
    for (int group = 0; group < kBlockGroups; ++group) {
      ask_for_tile<kPrefetch>(block.next_v[group] + at, 8, stride);
      _tile_loadd(5, p + group * 32, kBlockKeys * 4);
      _tile_loadd(7, block.v[group] + at, stride);
      _tile_dpbf16ps(0, 5, 7);
      ask_for_tile<kPrefetch>(block.next_v[group] + at + 64, 8, stride);
      _tile_loadd(7, block.v[group] + at + 64, stride);
      _tile_dpbf16ps(1, 5, 7);
    }
    _tile_stored(0, acc, stride);
    _tile_stored(1, acc + 16, stride);
  }
}

void attention_block_amx(const AttentionRows& rows, const KeyBlock& block) {
  int configured = 0;
  const auto configure = [&](int row) __attribute__((always_inline)) {
    const int height = rows.rows - row < kTileHeight ? rows.rows - row : kTileHeight;
    if (height != configured) configure_attention(height);
    configured = height;
  };
  configure(0);
  tile_scores<true>(rows, block, 0);
  for (int row = kTileHeight; row < rows.rows; row += kTileHeight) {
    configure(row);
    tile_scores<false>(rows, block, row);
  }
  float factor[kMaxAttentionRows];
  soften_block<Bf16Format>(rows, block.first_key, factor);
  for (int row = 0; row < rows.rows; ++row) {
    if (factor[row] == 1.0f) continue;
    float* acc = rows.state.acc + row * rows.padded_dim;
    for (int i = 0; i < rows.padded_dim; i += kLanes) store(acc + i, load(acc + i) * factor[row]);
  }
  configure(0);
  tile_values<true>(rows, block, 0);
  for (int row = kTileHeight; row < rows.rows; row += kTileHeight) {
    configure(row);
    tile_values<false>(rows, block, row);
  }
  _tile_release();
}

}  // namespace
}  // namespace millrace::cpu
