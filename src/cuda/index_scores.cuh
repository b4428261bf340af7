#pragma once

// The scores of an indexer: Σ_h w_h · max(q_h · k, 0). Keys are the rows of the products and stay in registers, while
// the queries of row after row pass through shared memory. A warp has the sums of its own keys; lane c of four adds up
// heads 8j + 2c and 8j + 2c + 1 for ascending j, and the four sums are added in a tree.

#include "cuda/batch.cuh"
#include "cuda/indexer_kernels.h"
#include "cuda/rotary.cuh"

namespace millrace::cuda {
namespace {

constexpr int kScoreThreads = 256;
constexpr int kScoreWarps = kScoreThreads / kLanes;
/// Heads of a row whose queries are in shared memory at a time.
constexpr int kStageHeads = 64;
/// Rows of a sequence that share the keys of a block.
constexpr int kGroupRows = 32;

/// The keys of a block and the shared-memory layout of queries, for heads of up to kMaxChannels channels; further ones
/// are zeros. A warp has kTiles times 16 keys.
template <int kMaxChannels, int kTiles>
struct IndexTile {
  static constexpr int kDim = kMaxChannels;
  static constexpr int kWarpTiles = kTiles;
  static constexpr int kWarpKeys = kTiles * 16;
  static constexpr int kKeys = kScoreWarps * kWarpKeys;
  static constexpr int kChunkGroups = kDim / 32;   ///< of four chunks of eight channels, one for each of four lanes
  static constexpr int kRowBytes = kDim * 2 + 64;  ///< the chunks of two heads fall into different banks
  static constexpr int kQueryBytes = kStageHeads * kRowBytes;
  static constexpr int kStageBytes = kQueryBytes + kStageHeads * static_cast<int>(sizeof(float));
  static constexpr size_t kSharedBytes = 2 * kStageBytes;
  static_assert(kDim % 64 == 0 && kSharedBytes <= kPortableSharedBytes);
};

struct ScoreParams {
  const uint16_t* queries = nullptr;  // [rows of the slice, heads, kDim]
  const float* weights = nullptr;     // [rows of the batch, heads]
  float* scores = nullptr;            // [rows of the slice, stride]
  int32_t stride = 0;
  int32_t head_count = 0;
  int32_t chosen_count = 0;
  int32_t first_row = 0;  ///< the slice of the batch's rows
  int32_t rows = 0;
  DeviceBatch batch;
  DeviceKvCache cache;
  int32_t layer = 0;
};

/// Rows of one sequence at consecutive positions.
struct RowGroup {
  int32_t sequence = -1;
  int32_t first = 0;  ///< of the slice
  int32_t count = 0;
  int32_t position = 0;  ///< of the first row
};

/// Finds the `number`-th group of rows, counted over the sequences. A sequence's first number leaves room for the
/// groups of those before it; numbers without a group have the sequence -1.
__device__ inline RowGroup find_group(const ScoreParams& p, int32_t number) {
  const auto first_row = [&](int32_t s) {
    return min(max(p.batch.row_begin[s], p.first_row), p.first_row + p.rows) - p.first_row;
  };
  int32_t low = 0;
  int32_t high = *p.batch.sequence_count;
  if (high == 0) return {};
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (first_row(middle) / kGroupRows + middle <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int32_t begin = first_row(low);
  const int32_t first = begin + (number - begin / kGroupRows - low) * kGroupRows;
  const int32_t end = first_row(low + 1);
  if (first >= end) return {};
  return {.sequence = low,
          .first = first,
          .count = min(kGroupRows, end - first),
          .position = p.batch.prefix[low] + p.first_row + first - p.batch.row_begin[low]};
}

/// A warp's keys as the left factors of mma. Its 16 inputs of a step are four channels of each of four chunks, so that
/// a lane's channels are contiguous. Queries have the same order.
template <class Tile>
struct KeyFactors {
  uint32_t values[Tile::kWarpTiles][2 * Tile::kChunkGroups][4];

  /// Loads the keys `first`, `first` + 8 and so on, as many as a lane has. Keys from `limit` on are zeros.
  __device__ void load(const ScoreParams& p, int32_t sequence, int32_t first, int32_t limit, int lane) {
    const uint32_t* const pages = p.batch.pages + p.batch.page_begin[sequence];
    const int32_t stride = channel_stride(p.cache.index_dim);
#pragma unroll
    for (int i = 0; i < 2 * Tile::kWarpTiles; ++i) {
      const int32_t key = first + 8 * i;
      const uint16_t* from = nullptr;
      if (key < limit)
        from = index_key_in_page(p.cache, pages[key / p.cache.page_size], p.layer, key % p.cache.page_size);
#pragma unroll
      for (int group = 0; group < Tile::kChunkGroups; ++group) {
        const int channel = (group * 4 + lane % 4) * 8;
        uint4 chunk{0, 0, 0, 0};
        if (from != nullptr && channel < stride) chunk = *reinterpret_cast<const uint4*>(from + channel);
        values[i / 2][2 * group][i % 2] = chunk.x;
        values[i / 2][2 * group][2 + i % 2] = chunk.y;
        values[i / 2][2 * group + 1][i % 2] = chunk.z;
        values[i / 2][2 * group + 1][2 + i % 2] = chunk.w;
      }
    }
  }
};

/// Starts the copies of up to kStageHeads heads of a row: queries and weights. Heads that do not exist become zeros.
template <class Tile>
__device__ void load_heads(const ScoreParams& p, int32_t row, int32_t first_head, std::byte* stage) {
  constexpr int kChunks = Tile::kDim / 8;
  const int32_t heads = min(kStageHeads, round_up(p.head_count - first_head, 8));
  const auto pair = static_cast<size_t>(row) * p.head_count;
  for (int i = threadIdx.x; i < heads * kChunks; i += kScoreThreads) {
    const int32_t head = first_head + i / kChunks;
    const bool known = head < p.head_count;
    copy_async(stage + i / kChunks * Tile::kRowBytes + i % kChunks * 16,
               p.queries + (known ? (pair + head) * Tile::kDim + i % kChunks * 8 : 0), known ? 16 : 0);
  }
  for (int i = threadIdx.x; i < heads; i += kScoreThreads) {
    const int32_t head = first_head + i;
    const bool known = head < p.head_count;
    const size_t at = static_cast<size_t>(p.first_row) * p.head_count + pair + head;
    copy_word_async(stage + Tile::kQueryBytes + i * 4, p.weights + (known ? at : 0), known ? 4 : 0);
  }
}

__device__ inline float weigh(float weight, float product) {
  return weight * (product < 0.0f ? 0.0f : product);  // a NaN stays
}

/// Adds a stage's heads to the sums of a lane's keys.
template <class Tile>
__device__ void add_heads(const KeyFactors<Tile>& keys, const std::byte* stage, int32_t heads, int lane,
                          float (&sums)[2 * Tile::kWarpTiles]) {
  const auto* const weights = reinterpret_cast<const float*>(stage + Tile::kQueryBytes);
  for (int32_t first = 0; first < heads; first += 8) {
    const std::byte* const query = stage + (first + lane / 4) * Tile::kRowBytes + lane % 4 * 16;
    float products[Tile::kWarpTiles][4] = {};
#pragma unroll
    for (int group = 0; group < Tile::kChunkGroups; ++group) {
      const auto chunk = *reinterpret_cast<const uint4*>(query + group * 64);
      const uint32_t factors[2][2] = {{chunk.x, chunk.y}, {chunk.z, chunk.w}};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int tile = 0; tile < Tile::kWarpTiles; ++tile)
          mma(products[tile], keys.values[tile][2 * group + half], factors[half]);
      }
    }
    const auto weight = *reinterpret_cast<const float2*>(weights + first + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 2 * Tile::kWarpTiles; ++i) {
      sums[i] += weigh(weight.x, products[i / 2][i % 2 * 2]);
      sums[i] += weigh(weight.y, products[i / 2][i % 2 * 2 + 1]);
    }
  }
}

/// Grid: [blocks of keys, groups of rows]: the scores of kKeys keys for the rows of a group that see and choose them.
template <class Tile>
__global__ void __launch_bounds__(kScoreThreads, 2) index_score_kernel(ScoreParams p) {
  const RowGroup group = find_group(p, static_cast<int32_t>(blockIdx.y));
  if (group.sequence < 0) return;
  const int32_t first_key = static_cast<int32_t>(blockIdx.x) * Tile::kKeys;
  const int32_t skipped = max(0, max(p.chosen_count, first_key) - group.position);
  if (skipped >= group.count) return;
  const int lane = threadIdx.x % kLanes;
  const int32_t warp_key = first_key + static_cast<int32_t>(threadIdx.x) / kLanes * Tile::kWarpKeys;
  const int32_t own_key = warp_key + lane / 4;
  const int32_t chunks = ceil_div(p.head_count, kStageHeads);
  const int32_t units = (group.count - skipped) * chunks;
  const auto start = [&](int32_t unit) {
    if (unit < units)
      load_heads<Tile>(p, group.first + skipped + unit / chunks, unit % chunks * kStageHeads,
                       shared_memory() + unit % 2 * Tile::kStageBytes);
    commit_copies();
  };
  start(0);
  KeyFactors<Tile> keys;
  keys.load(p, group.sequence, own_key, group.position + group.count, lane);
  float sums[2 * Tile::kWarpTiles] = {};
  for (int32_t unit = 0; unit < units; ++unit) {
    start(unit + 1);
    wait_copies<1>();
    __syncthreads();
    const int32_t row = skipped + unit / chunks;
    const int32_t position = group.position + row;
    const int32_t first_head = unit % chunks * kStageHeads;
    if (warp_key <= position)
      add_heads<Tile>(keys, shared_memory() + unit % 2 * Tile::kStageBytes, min(kStageHeads, p.head_count - first_head),
                      lane, sums);
    if (unit % chunks == chunks - 1) {
      float* const to = p.scores + static_cast<size_t>(group.first + row) * p.stride;
#pragma unroll
      for (int i = 0; i < 2 * Tile::kWarpTiles; ++i) {
        float sum = sums[i];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if (i % 4 == lane % 4 && own_key + 8 * i <= position) to[own_key + 8 * i] = sum;
        sums[i] = 0.0f;
      }
    }
    __syncthreads();  // no warp reads the stage any more
  }
}

constexpr int kIndexQueryThreads = 256;
/// Heads of a row that share the computation of its angles.
constexpr int kIndexQueryHeads = 16;

struct IndexQueryParams {
  const float* q = nullptr;  // [rows of the batch, heads, dim]
  int32_t head_count = 0;
  int32_t dim = 0;
  int32_t padded_dim = 0;
  int32_t chosen_count = 0;
  DeviceRotary rotary;
  DeviceBatch batch;
  int32_t first_row = 0;
  uint16_t* out = nullptr;  // [rows of the slice, heads, padded_dim]
};

/// Grid: [rows, blocks of kIndexQueryHeads heads]: rotates the first channels of queries and rounds them to bf16.
__global__ void __launch_bounds__(kIndexQueryThreads) index_query_kernel(IndexQueryParams p) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int32_t s = sequence_of(p.batch, p.first_row + row);
  if (s < 0) return;
  const int32_t position = p.batch.prefix[s] + p.first_row + row - p.batch.row_begin[s];
  if (position < p.chosen_count) return;
  const int32_t half = p.rotary.rotary_dim / 2;
  auto* const cos_table = reinterpret_cast<float*>(shared_memory());  // [half]
  float* const sin_table = cos_table + half;
  compute_angles(p.rotary, position, threadIdx.x, kIndexQueryThreads, cos_table, sin_table);
  __syncthreads();
  const int32_t first = static_cast<int32_t>(blockIdx.y) * kIndexQueryHeads;
  const int32_t heads = min(kIndexQueryHeads, p.head_count - first);
  const float* const in = p.q + (static_cast<size_t>(p.first_row + row) * p.head_count + first) * p.dim;
  uint16_t* const out = p.out + (static_cast<size_t>(row) * p.head_count + first) * p.padded_dim;
  for (int32_t i = threadIdx.x; i < heads * p.padded_dim; i += kIndexQueryThreads) {
    const int32_t channel = i % p.padded_dim;
    const float* const query = in + static_cast<size_t>(i / p.padded_dim) * p.dim;
    float value = channel < p.dim ? query[channel] : 0.0f;
    if (channel < half) value = value * cos_table[channel] - query[channel + half] * sin_table[channel];
    if (channel >= half && channel < 2 * half)
      value = value * cos_table[channel - half] + query[channel - half] * sin_table[channel - half];
    out[i] = float_to_bf16(value);
  }
}

}  // namespace
}  // namespace millrace::cuda
