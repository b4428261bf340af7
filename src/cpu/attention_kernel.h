#pragma once

// One block of 64 keys of streaming softmax attention. Included only by kernels.cc.

#include "cpu/microkernel.h"

namespace millrace::cpu {
namespace {

/// The running maximum before any visible key; finite, so that differences of maxima are never NaN.
constexpr float kNoMax = -1e30f;
/// Scores and maxima are held in units of ln 2, so that probabilities are powers of 2.
constexpr float kLog2E = 1.44269504088896341f;

/// Rows whose tiles all ask for a share of the next block; of more, the first tile does, a small part of the time.
constexpr int kAskingRows = 3 * kTileRows;

template <int R>
MILLRACE_INLINE Share share_of_asking_tile(const AttentionRows& rows, int row, size_t bytes, size_t full_step) {
  return rows.rows <= kAskingRows ? share_of_tile(bytes, full_step, row, R, rows.rows) : Share{0, full_step};
}

/// Scores of query rows against the block; with `kAsk` asks for the next block's keys on the way.
template <class Format, int R, bool kAsk>
MILLRACE_INLINE void score_rows(const AttentionRows& rows, const KeyBlock& block, int row) {
  const int steps = rows.padded_dim / Format::kDepth;
  const size_t q_stride = static_cast<size_t>(steps) * Format::kLeftStep;
  const RowStrides strides(q_stride);
  constexpr size_t kGroupStep = kGroupKeys * Format::kColumnStep;
  const Share share = share_of_asking_tile<R>(rows, row, static_cast<size_t>(steps) * kGroupStep, kGroupStep);
  for (int group = 0; group < kBlockGroups; group += kTileVecs) {
    Vec acc[R][kTileVecs] = {};
    const char* q = reinterpret_cast<const char*>(rows.q) + static_cast<size_t>(row) * q_stride;
    size_t offset = 0;
    size_t ahead = share.first;
    for (int step = 0; step < steps; ++step) {
      const char* right[kTileVecs];
#pragma clang loop unroll(full)
      for (int v = 0; v < kTileVecs; ++v) {
        right[v] = reinterpret_cast<const char*>(block.k[group + v]) + offset;
        if constexpr (kAsk) {
          __builtin_prefetch(reinterpret_cast<const char*>(block.next_k[group + v]) + ahead, 0, kIntoSecondLevel);
        }
      }
      Format::template step<R, kTileVecs>(acc, q, strides, right);
      q += Format::kLeftStep;
      offset += kGroupStep;
      ahead += share.step;
    }
    store_tile(acc, rows.scores + row * kBlockKeys + group * kGroupKeys, kBlockKeys);
  }
}

/// Turns the scores of a row into probabilities relative to the new maximum; returns the factor of what was summed
/// before. Keys that the row cannot see weigh exactly nothing, so that a block without visible keys changes nothing.
/// The probabilities replace the scores in place, as a left operand.
template <class Format, bool kAllVisible>
MILLRACE_INLINE float soften_row(const AttentionRows& rows, int row, int32_t first_key) {
  constexpr int kVecs = kBlockKeys / kLanes;
  const int32_t position = rows.position[row];
  const int32_t oldest = rows.window > 0 ? position - rows.window + 1 : 0;
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  float* scores = rows.scores + row * kBlockKeys;
  const auto visible = [&](int v) __attribute__((always_inline)) {
    const Ints key = lane + (first_key + v * kLanes);
    return (key <= position) & (key >= oldest);
  };
  const float scale = rows.scale * kLog2E;
  Vec score[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    score[v] = load(scores + v * kLanes) * scale;
    if constexpr (!kAllVisible) score[v] = visible(v) ? score[v] : splat(kNoMax);
  }
  const float old_max = rows.state.max[row];
  const float block_max = lane_max(max(max(score[0], score[1]), max(score[2], score[3])));
  const float new_max = block_max > old_max ? block_max : old_max;
  // Mostly the maximum stays, and 2^0 is exactly 1.
  const float factor = new_max == old_max ? 1.0f : exp2_nonpositive(splat(old_max - new_max))[0];
  float* sum = rows.state.sum + row * kLanes;
  Vec total = load(sum) * factor;
  for (int v = 0; v < kVecs; ++v) {
    Vec p = exp2_nonpositive(score[v] - new_max);
    if constexpr (!kAllVisible) p = visible(v) ? p : Vec{};
    total = total + p;
    Format::store_left(
        reinterpret_cast<std::byte*>(scores) + static_cast<size_t>(v * kLanes) * (Format::kLeftStep / Format::kDepth),
        p);
  }
  store(sum, total);
  rows.state.max[row] = new_max;
  return factor;
}

template <class Format>
MILLRACE_INLINE void soften_rows(const AttentionRows& rows, int32_t first_key, float* factor) {
  for (int row = 0; row < rows.rows; ++row) {
    const int32_t position = rows.position[row];
    const bool all_visible =
        first_key + kBlockKeys - 1 <= position && (rows.window <= 0 || first_key >= position - rows.window + 1);
    factor[row] =
        all_visible ? soften_row<Format, true>(rows, row, first_key) : soften_row<Format, false>(rows, row, first_key);
  }
}

/// acc[row] = acc[row] · factor[row] + Σ_key p[row][key] · v[key], for `V` vectors of channels from `channel`; with
/// `kAsk` asks for as much of the next block's values on the way, in the order of memory.
template <class Format, int R, int V, bool kAsk>
MILLRACE_INLINE void gather_values(const AttentionRows& rows, const KeyBlock& block, const float* factor, int row,
                                   int channel) {
  constexpr int kGroupSteps = kGroupKeys / Format::kDepth;
  constexpr size_t kLeftStride = kBlockKeys * sizeof(float);
  constexpr size_t kTileStep = V * kLanes * Format::kColumnStep;
  const size_t value_step = static_cast<size_t>(rows.padded_dim) * Format::kColumnStep;
  const size_t first_column = static_cast<size_t>(channel) * Format::kColumnStep;
  const Share share = share_of_asking_tile<R>(rows, row, kGroupSteps * kTileStep, kTileStep);
  float* c = rows.state.acc + row * rows.padded_dim + channel;
  Vec acc[R][V];
  load_tile(acc, c, static_cast<size_t>(rows.padded_dim));
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) acc[r][v] *= factor[row + r];
  }
  const char* p = reinterpret_cast<const char*>(rows.scores) + static_cast<size_t>(row) * kLeftStride;
  for (int group = 0; group < kBlockGroups; ++group) {
    const char* values = reinterpret_cast<const char*>(block.v[group]) + first_column;
    const char* ahead = reinterpret_cast<const char*>(block.next_v[group]) + kGroupSteps * first_column + share.first;
    for (int step = 0; step < kGroupSteps; ++step) {
      const char* right[V];
#pragma clang loop unroll(full)
      for (int v = 0; v < V; ++v) {
        const size_t at = static_cast<size_t>(v) * kLanes * Format::kColumnStep;
        right[v] = values + at;
        if constexpr (kAsk) __builtin_prefetch(ahead + at, 0, kIntoSecondLevel);
      }
      Format::template step<R, V>(acc, p, ConstantStrides<kLeftStride>{}, right);
      p += Format::kLeftStep;
      values += value_step;
      ahead += share.step;
    }
  }
  store_tile(acc, c, static_cast<size_t>(rows.padded_dim));
}

template <class Format, int R, bool kAsk, int V = kTileVecs>
MILLRACE_INLINE void gather_channels(const AttentionRows& rows, const KeyBlock& block, const float* factor, int row,
                                     int channel) {
  for (; channel + V * kLanes <= rows.padded_dim; channel += V * kLanes) {
    gather_values<Format, R, V, kAsk>(rows, block, factor, row, channel);
  }
  if constexpr (V > 1) gather_channels<Format, R, kAsk, V - 1>(rows, block, factor, row, channel);
}

template <class Format>
void attention_block(const AttentionRows& rows, const KeyBlock& block) {
  const auto asks = [&](int row) __attribute__((always_inline)) { return row == 0 || rows.rows <= kAskingRows; };
  for_row_tiles(rows.rows, [&](auto count, int row) {
    constexpr int R = decltype(count)::kCount;
    asks(row) ? score_rows<Format, R, true>(rows, block, row) : score_rows<Format, R, false>(rows, block, row);
  });
  float factor[kMaxAttentionRows];
  soften_rows<Format>(rows, block.first_key, factor);
  for_row_tiles(rows.rows, [&](auto count, int row) {
    constexpr int R = decltype(count)::kCount;
    asks(row) ? gather_channels<Format, R, true>(rows, block, factor, row, 0)
              : gather_channels<Format, R, false>(rows, block, factor, row, 0);
  });
}

void attention_merge(int rows, int padded_dim, const AttentionState& into, const AttentionState& from) {
  for (int row = 0; row < rows; ++row) {
    const float new_max = into.max[row] > from.max[row] ? into.max[row] : from.max[row];
    const Vec keep = exp2_nonpositive(splat(into.max[row] - new_max));
    const Vec add = exp2_nonpositive(splat(from.max[row] - new_max));
    into.max[row] = new_max;
    float* sum = into.sum + row * kLanes;
    store(sum, load(sum) * keep + load(from.sum + row * kLanes) * add);
    float* acc = into.acc + row * padded_dim;
    const float* other = from.acc + row * padded_dim;
    for (int i = 0; i < padded_dim; i += kLanes) store(acc + i, load(acc + i) * keep + load(other + i) * add);
  }
}

}  // namespace
}  // namespace millrace::cpu
