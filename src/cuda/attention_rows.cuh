#pragma once

// The rows of an attention warp and their addresses. Included by attention.cu only.

#include "cuda/attention_keys.cuh"

namespace millrace::cuda {
namespace {

struct AttentionParams {
  const uint16_t* q = nullptr;  // [rows, heads, head_dim]
  uint16_t* out = nullptr;      // the same
  int32_t head_count = 0;
  int32_t group = 0;  ///< query heads per kv head
  ScoreScale scale;
  int32_t sliding_window = 0;
  int32_t chunk_size = 0;
  bool causal = true;
  const float* sinks = nullptr;  // [heads] or null
  DeviceBatch batch;
  DeviceKvCache cache;
  int32_t layer = 0;
  int32_t split_rows = 0;          ///< split_kernel takes sequences of at most this number of rows
  float* partial_acc = nullptr;    // [split][kv_head][split_rows · group][kDim]
  float2* partial_sums = nullptr;  // the same without channels: maximum, sum
};

/// Virtual rows of one sequence and kv head. Virtual row r is query head r % group of row r / group.
struct QueryRows {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t first = 0;  ///< first virtual row of the warp or block
  int32_t total = 0;  ///< virtual rows of the sequence
  int32_t row_begin = 0;
  int32_t prefix = 0;
  /// Returns the position of the last key that a virtual row sees.
  [[nodiscard]] __device__ int32_t last_visible(const AttentionParams& a, int32_t virtual_row) const {
    return prefix + (a.causal ? min(virtual_row, total - 1) : total - 1) / a.group;
  }
  [[nodiscard]] __device__ int32_t first_visible(const AttentionParams& a, int32_t virtual_row) const {
    if (a.chunk_size > 0) return last_visible(a, virtual_row) / a.chunk_size * a.chunk_size;
    return a.sliding_window > 0 ? max(0, last_visible(a, virtual_row) - a.sliding_window + 1) : 0;
  }
  /// Returns the index of a virtual row's first channel in q and out.
  [[nodiscard]] __device__ size_t element(const AttentionParams& a, int32_t virtual_row) const {
    const auto row = static_cast<size_t>(row_begin + virtual_row / a.group);
    return (row * a.head_count + kv_head * a.group + virtual_row % a.group) * a.cache.head_dim;
  }
};

__device__ QueryRows rows_of(const AttentionParams& a, int32_t sequence, int32_t kv_head, int32_t first) {
  const int32_t begin = a.batch.row_begin[sequence];
  return {.sequence = sequence,
          .kv_head = kv_head,
          .first = first,
          .total = (a.batch.row_begin[sequence + 1] - begin) * a.group,
          .row_begin = begin,
          .prefix = a.batch.prefix[sequence]};
}

__device__ bool takes_splits(const AttentionParams& a, int32_t virtual_rows) {
  return virtual_rows > 0 && virtual_rows <= a.split_rows * a.group;
}
/// Returns the index of a virtual row's partial result in a split, counted over all sequences' splits.
__device__ size_t partial_of(const AttentionParams& a, const QueryRows& rows, int32_t split, int32_t virtual_row) {
  const size_t head = static_cast<size_t>(split) * a.cache.kv_head_count + rows.kv_head;
  return head * (a.split_rows * a.group) + virtual_row;
}

__device__ KvSource keys_of(const AttentionParams& a, const QueryRows& rows) {
  return {.cache = a.cache,
          .pages = a.batch.pages + a.batch.page_begin[rows.sequence],
          .layer = a.layer,
          .head = rows.kv_head,
          .limit = rows.prefix + rows.total / a.group};
}

__device__ Visibility visibility_of(const AttentionParams& a, const QueryRows& rows, int lane) {
  Visibility sees;
  for (int i = 0; i < 2; ++i) {
    sees.last_visible[i] = rows.last_visible(a, rows.first + lane / 4 + i * 8);
    sees.first_visible[i] = rows.first_visible(a, rows.first + lane / 4 + i * 8);
  }
  return sees;
}

/// Loads a warp's 16 queries into shared memory; zeros after the last row and channel. Over codes their channels have
/// the order of coded_channel_position.
template <int kDim, bool kCoded>
__device__ void load_queries(const AttentionParams& a, const QueryRows& rows, int lane, std::byte* queries) {
  using Tile = HeadTile<kDim>;
  const int32_t dim = a.cache.head_dim;
  for (int i = lane; i < kWarpRows * Tile::kChunks; i += kLanes) {
    const int32_t virtual_row = rows.first + i / Tile::kChunks;
    const int channel = i % Tile::kChunks * 8;
    const int32_t known = virtual_row < rows.total ? max(0, min(8, dim - channel)) : 0;
    const uint16_t* const from = a.q + (known > 0 ? rows.element(a, virtual_row) + channel : 0);
    auto* const to = reinterpret_cast<uint16_t*>(queries + i / Tile::kChunks * Tile::kRowBytes);
    const auto position = [](int of) { return kCoded ? coded_channel_position(of) : of; };
    if (known < 8 || dim % 8 != 0) {
      for (int j = 0; j < 8; ++j) to[position(channel + j)] = j < known ? from[j] : uint16_t{0};
      continue;
    }
    const uint4 query = *reinterpret_cast<const uint4*>(from);
    if constexpr (kCoded) {
      *reinterpret_cast<uint2*>(to + position(channel)) =
          uint2{__byte_perm(query.x, query.y, 0x5410u), __byte_perm(query.z, query.w, 0x5410u)};
      *reinterpret_cast<uint2*>(to + position(channel + 1)) =
          uint2{__byte_perm(query.x, query.y, 0x7632u), __byte_perm(query.z, query.w, 0x7632u)};
    } else {
      *reinterpret_cast<uint4*>(to + channel) = query;
    }
  }
}

/// Returns the factor of a row's unnormalised output: 1 / sum, where its head's sink counts too. The maximum is in
/// units of log2.
__device__ float output_factor(const AttentionParams& a, const QueryRows& rows, int32_t virtual_row, float max,
                               float sum) {
  if (a.sinks == nullptr) return 1.0f / sum;
  const float sink = a.sinks[rows.kv_head * a.group + virtual_row % a.group];
  const SoftmaxMerge merge = merge_max(max, sink * kLog2E);
  return merge.keep / merge_value(merge, sum, 1.0f);
}

/// Two neighbouring channels of one of a lane's rows, counted from the warp's first.
struct ChannelPair {
  int channel = 0;
  float low = 0.0f;
  float high = 0.0f;
};
/// Returns the pair-th pair of channels of a lane's row: with codes mma's tiles have the even and the odd ones of 16.
template <bool kCoded, int kOwn>
__device__ ChannelPair channel_pair(const RowState<kOwn>& state, int row, int pair, int lane) {
  if constexpr (kCoded) {
    const int first = pair / 2 * 2;
    const int i = row * 2 + pair % 2;
    return {first * 8 + lane % 4 * 4 + pair % 2 * 2, state.acc[first][i], state.acc[first + 1][i]};
  } else {
    return {pair * 8 + lane % 4 * 2, state.acc[pair][row * 2], state.acc[pair][row * 2 + 1]};
  }
}

/// Stores a part of the channels of a warp's rows.
template <int kDim, bool kCoded>
__device__ void store_rows(const AttentionParams& a, const QueryRows& rows, const RowState<kPartChannels<kDim>>& state,
                           int lane, int part) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t virtual_row = rows.first + lane / 4 + i * 8;
    if (virtual_row >= rows.total) continue;
    const float inverse = output_factor(a, rows, virtual_row, state.max[i], state.sum[i]);
    uint16_t* const out = a.out + rows.element(a, virtual_row);
#pragma unroll
    for (int n = 0; n < kPartChannels<kDim> / 8; ++n) {
      const ChannelPair pair = channel_pair<kCoded>(state, i, n, lane);
      const int channel = part * kPartChannels<kDim> + pair.channel;
      const float low = pair.low * inverse;
      const float high = pair.high * inverse;
      if (a.cache.head_dim % 2 == 0) {
        if (channel < a.cache.head_dim) *reinterpret_cast<uint32_t*>(out + channel) = pack_bf16(low, high);
      } else {
        if (channel < a.cache.head_dim) out[channel] = float_to_bf16(low);
        if (channel + 1 < a.cache.head_dim) out[channel + 1] = float_to_bf16(high);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::cuda
