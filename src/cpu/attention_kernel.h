#pragma once

// One block of 64 keys of streaming softmax attention. Included only by kernels.cc.

#include "cpu/microkernel.h"
#include "cpu/softmax_kernel.h"

namespace millrace::cpu {
namespace {

/// Rows whose tiles all prefetch a share of the next block. With more rows the first tile prefetches all, in a small
/// part of the time.
constexpr int kMaxSharedPrefetchRows = kTargetsIntel && kWideTiles ? kMaxQueryTileRows : 3 * kTileRows;

template <int R>
MILLRACE_INLINE PrefetchShare prefetch_share_of_query_tile(const QueryTile& rows, int row, size_t bytes,
                                                           size_t full_step) {
  return rows.rows <= kMaxSharedPrefetchRows ? prefetch_share_of_tile(bytes, full_step, row, R, rows.rows)
                                             : PrefetchShare{0, full_step};
}

/// Computes the scores of query rows against the block. With `kPrefetch` it prefetches the next block's keys.
template <class Format, int R, bool kPrefetch>
MILLRACE_INLINE void score_rows(const QueryTile& rows, const KvBlock& block, int row) {
  const int steps = rows.padded_dim / Format::kDepth;
  const size_t q_stride = static_cast<size_t>(steps) * Format::kLhsStep;
  const RowStrides strides(q_stride);
  constexpr size_t kGroupStep = kGroupKeys * Format::kColumnStep;
  const PrefetchShare share =
      prefetch_share_of_query_tile<R>(rows, row, static_cast<size_t>(steps) * kGroupStep, kGroupStep);
  const int groups = visible_groups(rows, row + R - 1, block.first_key);
  for (int group = 0; group < groups; group += kTileVecs) {
    Vec acc[R][kTileVecs] = {};
    const char* q = reinterpret_cast<const char*>(rows.q) + static_cast<size_t>(row) * q_stride;
    size_t offset = 0;
    size_t ahead = share.first;
    for (int step = 0; step < steps; ++step) {
      const char* right[kTileVecs];
#pragma clang loop unroll(full)
      for (int v = 0; v < kTileVecs; ++v) {
        right[v] = reinterpret_cast<const char*>(block.k[group + v]) + offset;
        if constexpr (kPrefetch) {
          __builtin_prefetch(reinterpret_cast<const char*>(block.next_k[group + v]) + ahead, 0, kPrefetchToL2);
        }
      }
      Format::template step<R, kTileVecs>(acc, q, strides, right);
      q += Format::kLhsStep;
      offset += kGroupStep;
      ahead += share.step;
    }
    store_tile(acc, rows.scores + row * kBlockKeys + group * kGroupKeys, kBlockKeys);
  }
}

/// Computes acc[row] = acc[row] · factor[row] + Σ_key p[row][key] · v[key] for `V` vectors of channels from `channel`
/// on. With `kPrefetch` it prefetches as much of the next block's values, in memory order.
template <class Format, int R, int V, bool kPrefetch>
MILLRACE_INLINE void accumulate_values(const QueryTile& rows, const KvBlock& block, const float* factor, int row,
                                       int channel) {
  constexpr int kGroupSteps = kGroupKeys / Format::kDepth;
  constexpr size_t kLhsStride = kBlockKeys * sizeof(float);
  constexpr size_t kTileStep = V * kLanes * Format::kColumnStep;
  const size_t value_step = static_cast<size_t>(rows.value_dim) * Format::kColumnStep;
  const size_t first_column = static_cast<size_t>(channel) * Format::kColumnStep;
  const PrefetchShare share = prefetch_share_of_query_tile<R>(rows, row, kGroupSteps * kTileStep, kTileStep);
  float* c = rows.state.acc + row * rows.value_dim + channel;
  Vec acc[R][V];
  load_tile(acc, c, static_cast<size_t>(rows.value_dim));
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) acc[r][v] *= factor[row + r];
  }
  const char* p = reinterpret_cast<const char*>(rows.scores) + static_cast<size_t>(row) * kLhsStride;
  const int groups = visible_groups(rows, row + R - 1, block.first_key);
  for (int group = 0; group < groups; ++group) {
    const char* values = reinterpret_cast<const char*>(block.v[group]) + first_column;
    const char* ahead = reinterpret_cast<const char*>(block.next_v[group]) + kGroupSteps * first_column + share.first;
    for (int step = 0; step < kGroupSteps; ++step) {
      const char* right[V];
#pragma clang loop unroll(full)
      for (int v = 0; v < V; ++v) {
        const size_t at = static_cast<size_t>(v) * kLanes * Format::kColumnStep;
        right[v] = values + at;
        if constexpr (kPrefetch) __builtin_prefetch(ahead + at, 0, kPrefetchToL2);
      }
      Format::template step<R, V>(acc, p, ConstantStrides<kLhsStride>{}, right);
      p += Format::kLhsStep;
      values += value_step;
      ahead += share.step;
    }
  }
  store_tile(acc, c, static_cast<size_t>(rows.value_dim));
}

template <class Format, int R, bool kPrefetch, int V = kTileVecs>
MILLRACE_INLINE void accumulate_channels(const QueryTile& rows, const KvBlock& block, const float* factor, int row,
                                         int channel) {
  for (; channel + V * kLanes <= rows.value_dim; channel += V * kLanes) {
    accumulate_values<Format, R, V, kPrefetch>(rows, block, factor, row, channel);
  }
  if constexpr (V > 1) accumulate_channels<Format, R, kPrefetch, V - 1>(rows, block, factor, row, channel);
}

template <class Format>
void attention_block(const QueryTile& rows, const KvBlock& block) {
  const auto asks = [&](int row)
                        __attribute__((always_inline)) { return row == 0 || rows.rows <= kMaxSharedPrefetchRows; };
  for_row_tiles(rows.rows, [&](auto count, int row) {
    constexpr int R = decltype(count)::kCount;
    asks(row) ? score_rows<Format, R, true>(rows, block, row) : score_rows<Format, R, false>(rows, block, row);
  });
  float factor[kMaxQueryTileRows];
  NoInterleavedWork nothing;
  for (int row = 0; row < rows.rows; row += kBandRows) {
    softmax_band<Format>(rows, band_at(rows, row, block.first_key), block.first_key, factor + row, nothing);
  }
  for_row_tiles(rows.rows, [&](auto count, int row) {
    constexpr int R = decltype(count)::kCount;
    asks(row) ? accumulate_channels<Format, R, true>(rows, block, factor, row, 0)
              : accumulate_channels<Format, R, false>(rows, block, factor, row, 0);
  });
}

void attention_merge(int rows, int value_dim, const AttentionState& into, const AttentionState& from) {
  for (int row = 0; row < rows; ++row) {
    const float new_max = into.max[row] > from.max[row] ? into.max[row] : from.max[row];
    const Vec keep = exp2_nonpositive(splat(into.max[row] - new_max));
    const Vec add = exp2_nonpositive(splat(from.max[row] - new_max));
    into.max[row] = new_max;
    float* sum = into.sum + row * kLanes;
    store(sum, load(sum) * keep + load(from.sum + row * kLanes) * add);
    float* acc = into.acc + row * value_dim;
    const float* other = from.acc + row * value_dim;
    for (int i = 0; i < value_dim; i += kLanes) store(acc + i, load(acc + i) * keep + load(other + i) * add);
  }
}

void attention_output(const float* acc, const float* sum, int64_t count, bool as_bf16, std::byte* out) {
  const float inverse = 1.0f / lane_sum(load(sum));
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = count - i < kLanes ? count - i : kLanes;
    const Vec value = load(acc + i) * inverse;
    if (!as_bf16) {
      store_part(reinterpret_cast<float*>(out) + i, value, lanes);
    } else if (const Halves narrow = narrow_bf16(value); lanes == kLanes) {
      store_as(out + i * 2, narrow);
    } else {
      __builtin_memcpy(out + i * 2, &narrow, static_cast<size_t>(lanes) * 2);
    }
  }
}

}  // namespace
}  // namespace millrace::cpu
