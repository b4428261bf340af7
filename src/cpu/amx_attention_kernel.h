#pragma once

// Attention on tile registers (AMX). Included only by kernels.cc.

#include <type_traits>

#include "cpu/amx_kernel.h"
#include "cpu/attention_kernel.h"

namespace millrace::cpu {
namespace {

/// Asks for a tile of the next block, line by line.
MILLRACE_INLINE void ask_for_lines(const char* tile, int lines, size_t stride) {
#pragma clang loop unroll(full)
  for (int line = 0; line < lines; ++line) {
    __builtin_prefetch(tile + static_cast<size_t>(line) * stride, 0, kIntoSecondLevel);
  }
}

/// `rows` of left tile 4 and of the sums; tile 5 holds probabilities of 16 keys, tile 7 as many values.
MILLRACE_INLINE void configure_attention(int rows) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) config.rows[tile] = static_cast<uint8_t>(rows);
  config.row_bytes[5] = 32;
  config.rows[7] = 8;
  _tile_loadconfig(&config);
}

/// Values are asked for between their tiles, but for the first group's: else memory were idle during the softmax. More
/// than these would hold up what the softmax reads.
constexpr int kGroupsAskedForEarly = 1;

/// Up to 16 rows from `row` against one block. Tiles 0 to 3 hold the sums.
template <bool kPrefetch>
struct AttentionTile {
  const AttentionRows& rows;
  const KeyBlock& block;
  int row;

  [[nodiscard]] const char* k(int group) const { return reinterpret_cast<const char*>(block.k[group]); }
  [[nodiscard]] const char* v(int group) const { return reinterpret_cast<const char*>(block.v[group]); }
  [[nodiscard]] const char* next_k(int group) const { return reinterpret_cast<const char*>(block.next_k[group]); }
  [[nodiscard]] const char* next_v(int group) const { return reinterpret_cast<const char*>(block.next_v[group]); }

  /// Queries times the four groups of keys, 32 channels at a time.
  MILLRACE_INLINE void score() const {
    const size_t stride = static_cast<size_t>(rows.padded_dim) * 2;
    const char* const q = reinterpret_cast<const char*>(rows.q) + static_cast<size_t>(row) * stride;
    clear_sums();
    for (int channel = 0; channel < rows.padded_dim; channel += 32) {
      const size_t at = static_cast<size_t>(channel) * 32;  // bytes: 16 keys of 2 per channel
      _tile_loadd(4, q + channel * 2, stride);
      if constexpr (kPrefetch) ask_for_lines(next_k(0) + at, 16, 64);
      _tile_loadd(6, k(0) + at, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kPrefetch) ask_for_lines(next_k(1) + at, 16, 64);
      _tile_loadd(6, k(1) + at, 64);
      _tile_dpbf16ps(1, 4, 6);
      if constexpr (kPrefetch) ask_for_lines(next_k(2) + at, 16, 64);
      _tile_loadd(6, k(2) + at, 64);
      _tile_dpbf16ps(2, 4, 6);
      if constexpr (kPrefetch) ask_for_lines(next_k(3) + at, 16, 64);
      _tile_loadd(6, k(3) + at, 64);
      _tile_dpbf16ps(3, 4, 6);
    }
    float* const scores = rows.scores + row * kBlockKeys;
    _tile_stored(0, scores, kBlockKeys * 4);
    _tile_stored(1, scores + 16, kBlockKeys * 4);
    _tile_stored(2, scores + 32, kBlockKeys * 4);
    _tile_stored(3, scores + 48, kBlockKeys * 4);
  }

  /// Adds probabilities times values to the accumulators, 64 channels at a time and the 32 that may be left.
  MILLRACE_INLINE void add_values() const {
    int channel = 0;
    for (; channel + 64 <= rows.padded_dim; channel += 64) add_values_to<true>(channel);
    if (channel < rows.padded_dim) add_values_to<false>(channel);
  }

  template <bool kWide>
  MILLRACE_INLINE void add_values_to(int channel) const {
    const size_t stride = static_cast<size_t>(rows.padded_dim) * 4;  // of accumulators and of a step of values
    const char* const p = reinterpret_cast<const char*>(rows.scores + row * kBlockKeys);
    float* const acc = rows.state.acc + row * rows.padded_dim + channel;
    const size_t at = static_cast<size_t>(channel) * 4;
    _tile_loadd(0, acc, stride);
    _tile_loadd(1, acc + 16, stride);
    if constexpr (kWide) {
      _tile_loadd(2, acc + 32, stride);
      _tile_loadd(3, acc + 48, stride);
    }
    for (int group = 0; group < kBlockGroups; ++group) {
      const char* const values = v(group) + at;
      const char* const next = next_v(group) + at;
      const bool asks = kPrefetch && group >= kGroupsAskedForEarly;
      _tile_loadd(5, p + group * 32, kBlockKeys * 4);
      if (asks) ask_for_lines(next, 8, stride);
      _tile_loadd(7, values, stride);
      _tile_dpbf16ps(0, 5, 7);
      if (asks) ask_for_lines(next + 64, 8, stride);
      _tile_loadd(7, values + 64, stride);
      _tile_dpbf16ps(1, 5, 7);
      if constexpr (kWide) {
        if (asks) ask_for_lines(next + 128, 8, stride);
        _tile_loadd(7, values + 128, stride);
        _tile_dpbf16ps(2, 5, 7);
        if (asks) ask_for_lines(next + 192, 8, stride);
        _tile_loadd(7, values + 192, stride);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, acc, stride);
    _tile_stored(1, acc + 16, stride);
    if constexpr (kWide) {
      _tile_stored(2, acc + 32, stride);
      _tile_stored(3, acc + 48, stride);
    }
  }
};

/// Softmax of all rows, and their accumulators brought to the new maxima.
MILLRACE_INLINE void soften_tiles(const AttentionRows& rows, int32_t first_key) {
  float factor[kMaxAttentionRows];
  soften_rows<Bf16Format>(rows, first_key, factor);
  for (int row = 0; row < rows.rows; ++row) {
    if (factor[row] == 1.0f) continue;
    float* acc = rows.state.acc + row * rows.padded_dim;
    for (int i = 0; i < rows.padded_dim; i += kLanes) store(acc + i, load(acc + i) * factor[row]);
  }
}

/// Calls body for the 16 rows from each multiple of 16, and for what is left in a shape of its own.
template <class Body>
MILLRACE_INLINE void for_tile_rows(int count, const Body& body) {
  const int whole = count / kTileHeight * kTileHeight;
  body(0, std::true_type());
  for (int row = kTileHeight; row < whole; row += kTileHeight) body(row, std::false_type());
  if (whole == 0 || whole == count) return;
  configure_attention(count - whole);
  body(whole, std::false_type());
  configure_attention(kTileHeight);
}

/// So many groups of the next block's values, before the softmax.
MILLRACE_INLINE void ask_for_first_values(const AttentionRows& rows, const KeyBlock& block) {
  for (int group = 0; group < kGroupsAskedForEarly; ++group) {
    const auto* values = reinterpret_cast<const char*>(block.next_v[group]);
    for (int line = 0; line < rows.padded_dim / 2; ++line) __builtin_prefetch(values + line * 64, 0, kIntoSecondLevel);
  }
}

void attention_block_amx(const AttentionRows& rows, const KeyBlock& block) {
  if (block.opens) configure_attention(rows.rows < kTileHeight ? rows.rows : kTileHeight);
  for_tile_rows(rows.rows, [&](int row, auto first) __attribute__((always_inline)) {
    AttentionTile<decltype(first)::value>{rows, block, row}.score();
  });
  ask_for_first_values(rows, block);
  soften_tiles(rows, block.first_key);
  for_tile_rows(rows.rows, [&](int row, auto first) __attribute__((always_inline)) {
    AttentionTile<decltype(first)::value>{rows, block, row}.add_values();
  });
  if (block.closes) _tile_release();
}

}  // namespace
}  // namespace millrace::cpu
