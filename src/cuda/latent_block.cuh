#pragma once

// The tiles of pairs of row and head of latent attention, for either instruction, and one block's share by mma: 32
// pairs against blocks of 32 latents. Both kernels by mma use it, so that a row's sums are the same instructions in the
// same order.

#include "cuda/latent_codes.cuh"
#include "cuda/sparse_rows.cuh"

namespace millrace::cuda {
namespace {

constexpr int kTileRows = 2 * kWarpRows;  ///< pairs of row and head of a block
constexpr int kQuarters = 4;              ///< warps that share 16 pairs: each has a quarter of the keys and channels
constexpr int kLatentThreads = 2 * kQuarters * kLanes;
constexpr int kBlockWarpKeys = kBlockKeys * kLanes / kLatentThreads;  ///< keys whose codes a warp copies

/// The shared-memory layout for latents of up to kLatentDim values with keys of up to kKeyDim; further values are
/// zeros. Where pages have codes, the second stage has the next block's, and the first one in bf16.
template <int kLatentDim, int kKeyDim, bool kHasCodes>
struct LatentTile {
  static constexpr bool kByWarpgroup = false;
  static constexpr bool kCoded = kHasCodes;
  static constexpr int kLatent = kLatentDim;
  static constexpr int32_t kTileSplitKeys = kSplitKeys;
  static constexpr size_t kTotalBytes = 0;  ///< registers have room for the sums of earlier splits
  static constexpr int kKey = kKeyDim;
  static constexpr int kWarpChannels = kLatentDim / kQuarters;
  static constexpr int kChunks = kKeyDim / 8;         ///< 16-byte chunks per key
  static constexpr int kRowBytes = kKeyDim * 2 + 16;  ///< the chunks of eight keys fall into different banks
  static constexpr int kStageBytes = kBlockKeys * kRowBytes;
  static constexpr int kQueryBytes = kTileRows * kRowBytes;
  static constexpr int kScoreStride = kBlockKeys + 8;  ///< floats per pair; spreads pairs over the banks
  static constexpr int kScoreBytes = kTileRows * kScoreStride * 4;
  static constexpr size_t kSharedBytes = 2 * kStageBytes + kQueryBytes + kScoreBytes;
  using State = RowState<kWarpChannels>;
  static_assert(kKeyDim % 32 == 0 && kWarpChannels % 16 == 0);
  // The copies of a stage are the same number for every thread, since all lanes take part in a shuffle.
  static_assert(kBlockKeys * kChunks % kLatentThreads == 0);
};

/// Returns whether a sequence goes split by split.
__device__ bool takes_splits(const LatentParams& a, int32_t sequence) {
  return a.batch.row_begin[sequence + 1] - a.batch.row_begin[sequence] <= a.split_rows;
}
/// Returns the number of a sequence's split of split_keys keys among those of all sequences, which leave gaps.
__device__ int32_t split_slot(const LatentParams& a, int32_t sequence, int32_t split) {
  const int32_t first = a.batch.split_begin[sequence];
  return split + (a.split_keys == kSplitKeys ? first : first / (a.split_keys / kSplitKeys) + sequence);
}
__device__ size_t partial_of(const LatentParams& a, int32_t split, int32_t pair) {
  return static_cast<size_t>(split) * (a.split_rows * a.head_count) + pair;
}

/// Finds the `tile`-th tile of kRows pairs, counted over the sequences. A sequence's first number leaves room for
/// the tiles of those before it; numbers without a tile have the sequence -1.
template <int kRows>
__device__ LatentRows find_tile(const LatentParams& a, int32_t tile) {
  const auto first_tile = [&](int32_t s) {
    const int32_t row = min(max(a.batch.row_begin[s], a.first_row), a.first_row + a.rows) - a.first_row;
    return static_cast<int32_t>(static_cast<int64_t>(row) * a.head_count / kRows) + s;
  };
  int32_t low = 0;
  int32_t high = *a.batch.sequence_count;
  if (high == 0) return {};
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (first_tile(middle) <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const LatentRows rows = rows_of(a, low, (tile - first_tile(low)) * kRows);
  return rows.first < rows.total ? rows : LatentRows{};
}

/// Loads a block's queries into shared memory, eight channels at at(pair of the block, chunk); zeros after the last
/// pair and channel.
template <class Tile, int kPairCount, int kThreads, class At>
__device__ void load_queries(const LatentParams& a, const LatentRows& rows, const At& at) {
  const int32_t key_dim = a.latent_dim + a.rope_dim;
  const bool aligned = a.latent_dim % 8 == 0 && a.rope_dim % 8 == 0;
  for (int i = threadIdx.x; i < kPairCount * Tile::kChunks; i += kThreads) {
    const int own = i / Tile::kChunks;
    const int32_t pair = rows.first + own;
    const int channel = i % Tile::kChunks * 8;
    const size_t row = pair < rows.total ? rows.matrix_row(a, pair) : 0;
    const int32_t known = pair < rows.total ? max(0, min(8, key_dim - channel)) : 0;
    const auto from = [&](int32_t c) {
      return c < a.latent_dim ? a.latents + row * a.latent_dim + c : a.keys + row * a.rope_dim + (c - a.latent_dim);
    };
    std::byte* const to = at(own, channel / 8);
    if (aligned && known == 8) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from(channel));
    } else {
      for (int j = 0; j < 8; ++j) reinterpret_cast<uint16_t*>(to)[j] = j < known ? *from(channel + j) : uint16_t{0};
    }
  }
}

/// Returns the place of a warp's codes in a block.
__device__ inline std::byte* own_codes(const KvSource& source, std::byte* codes, int warp, int warp_keys) {
  return codes + warp * warp_keys * latent_token_bytes(source.cache);
}

/// Starts the copies of 32 latents with their keys, where each lane knows the offset of one. Missing ones become zeros.
template <class Tile>
__device__ void load_latents(const KvSource& source, size_t own_offset, std::byte* stage) {
  if constexpr (Tile::kCoded) {
    const int warp = threadIdx.x / kLanes;
    load_coded_latents<kBlockWarpKeys>(source.cache, own_offset, warp * kBlockWarpKeys,
                                       own_codes(source, stage, warp, kBlockWarpKeys));
  } else {
    const auto* const data = static_cast<const std::byte*>(source.cache.data);
    const int32_t stride = channel_stride(source.cache.head_dim);
    for (int i = threadIdx.x; i < kBlockKeys * Tile::kChunks; i += kLatentThreads) {
      const int key = i / Tile::kChunks;
      const int chunk = i % Tile::kChunks;
      const size_t offset = __shfl_sync(kAllLanes, own_offset, key);
      const bool known = offset != kNoKey && chunk * 8 < stride;
      copy_async(stage + key * Tile::kRowBytes + chunk * 16, data + (known ? offset + chunk * 16 : 0), known ? 16 : 0);
    }
  }
}

/// Brings a block of codes to bf16. Other threads may read it after a barrier.
template <class Tile>
__device__ void dequantize_block(const KvSource& source, std::byte* codes, std::byte* block) {
  const int warp = threadIdx.x / kLanes;
  dequantize_latents<kBlockWarpKeys, Tile::kLatent / 8, Tile::kChunks>(
      source.cache, own_codes(source, codes, warp, kBlockWarpKeys),
      [&](int key, int chunk) { return block + (warp * kBlockWarpKeys + key) * Tile::kRowBytes + chunk * 16; });
}

/// Computes the scores of a warp's 16 pairs and its quarter of the keys, and stores them for the warps that share the
/// pairs, [pair][key].
template <class Tile>
__device__ void score_quarter(const std::byte* queries, const std::byte* stage, int lane, int quarter, float* scores) {
  const std::byte* const query = queries + (lane % 16) * Tile::kRowBytes + lane / 16 * 16;
  const std::byte* const key = stage + (quarter * 8 + lane % 8) * Tile::kRowBytes + lane / 8 * 16;
  float sums[2][4] = {};  // two chains of dependent products overlap
#pragma unroll
  for (int step = 0; step < Tile::kKey / 32; ++step) {
    uint32_t b[4];
    load_matrix(b, key + step * 64);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[4];
      load_matrix(a, query + step * 64 + half * 32);
      const uint32_t pair[2] = {b[half * 2], b[half * 2 + 1]};
      mma(sums[half], a, pair);
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float* const to = scores + (lane / 4 + row * 8) * Tile::kScoreStride + quarter * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(to) =
        float2{sums[0][row * 2] + sums[1][row * 2], sums[0][row * 2 + 1] + sums[1][row * 2 + 1]};
  }
}

/// Loads the scores of a warp's 16 pairs and all keys, in mma's layout.
template <class Tile>
__device__ void load_scores(const float* from, int lane, float (&scores)[4][4]) {
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const auto two =
          *reinterpret_cast<const float2*>(from + (lane / 4 + row * 8) * Tile::kScoreStride + tile * 8 + lane % 4 * 2);
      scores[tile][row * 2] = two.x;
      scores[tile][row * 2 + 1] = two.y;
    }
  }
}

/// acc += probabilities · a warp's quarter of the latents' values.
template <class Tile>
__device__ void add_latents(const float (&p)[4][4], const std::byte* stage, int lane, int quarter,
                            typename Tile::State& state) {
  const std::byte* const value =
      stage + (lane % 16) * Tile::kRowBytes + quarter * Tile::kWarpChannels * 2 + lane / 16 * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t a[4];
    pack_probabilities(p, half, a);
    add_value_pairs<Tile::kWarpChannels / 16>(a, value + half * 16 * Tile::kRowBytes, state.acc);
  }
}

/// Walks over the latents [begin, end) of a sequence; `begin` is a multiple of 32. Calls end_split(state) at the end of
/// each split.
template <class Tile, class EndSplit>
__device__ void walk_latents(const LatentParams& a, const LatentRows& rows, int32_t begin, int32_t end,
                             typename Tile::State& state, const EndSplit& end_split) {
  const int lane = threadIdx.x % kLanes;
  const int quarter = threadIdx.x / kLanes % kQuarters;
  const int group = threadIdx.x / kLanes / kQuarters;  // which 16 pairs
  std::byte* const stages = shared_memory();
  std::byte* const queries = stages + 2 * Tile::kStageBytes;
  auto* const scores = reinterpret_cast<float*>(queries + Tile::kQueryBytes) + group * kWarpRows * Tile::kScoreStride;
  const KvSource source{.cache = a.cache,
                        .pages = a.batch.pages + a.batch.page_begin[rows.sequence],
                        .layer = a.layer,
                        .head = 0,
                        .limit = rows.prefix + rows.total / a.head_count};
  Visibility sees;
  for (int i = 0; i < 2; ++i)
    sees.last_visible[i] = rows.position(a, rows.first + group * kWarpRows + lane / 4 + i * 8);
  load_queries<Tile, kTileRows, kLatentThreads>(
      a, rows, [&](int own, int chunk) { return queries + own * Tile::kRowBytes + chunk * 16; });
  const auto copied_to = [&](int32_t key) {
    return stages + (Tile::kCoded ? 1 : (key - begin) / kBlockKeys % 2) * Tile::kStageBytes;
  };
  load_latents<Tile>(source, latent_offset(source, rows.chosen, begin + lane), copied_to(begin));
  commit_copies();
  size_t next_offset = latent_offset(source, rows.chosen, begin + kBlockKeys + lane);
  for (int32_t key = begin; key < end; key += kBlockKeys) {
    const std::byte* const stage = Tile::kCoded ? stages : copied_to(key);
    wait_copies<0>();
    __syncthreads();  // no warp reads the other stage, the block in bf16 or the scores any more
    if constexpr (Tile::kCoded) dequantize_block<Tile>(source, copied_to(key), stages);
    const int32_t next = key + kBlockKeys;
    if (next < end) load_latents<Tile>(source, next_offset, copied_to(next));
    commit_copies();
    if constexpr (Tile::kCoded) __syncthreads();
    next_offset = latent_offset(source, rows.chosen, next + kBlockKeys + lane);
    score_quarter<Tile>(queries + group * kWarpRows * Tile::kRowBytes, stage, lane, quarter, scores);
    __syncthreads();
    float block[4][4];
    load_scores<Tile>(scores, lane, block);
    float factor[2];
    online_softmax_block<Tile::kWarpChannels>(block, sees, key, a.scale_log2, lane, state, factor);
    // A factor of 1 changes no bit, so the work can be left out where all rows agree.
    if (__ballot_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f) != 0) {
#pragma unroll
      for (int tile = 0; tile < Tile::kWarpChannels / 8; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.acc[tile][i] *= factor[i / 2];
      }
    }
    add_latents<Tile>(block, stage, lane, quarter, state);
    if (next % kSplitKeys == 0 || next >= end) end_split(state);
  }
}

}  // namespace
}  // namespace millrace::cuda
