#pragma once

// The kernels of latent attention by mma, over all latents or over those that each row has chosen: one for splits of
// few rows, and one for rows that walk over all keys.

#include "cuda/latent_merge.cuh"

namespace millrace::cuda {
namespace {

/// Stores one of a lane's rows of a tile's results.
template <class Tile>
__device__ void store_row(const LatentParams& a, const LatentRows& rows, int32_t pair, int row, int lane, int quarter,
                          const typename Tile::State& state) {
  const float inverse = 1.0f / state.sum[row];
  uint16_t* const out = a.out + rows.matrix_row(a, pair) * a.latent_dim;
#pragma unroll
  for (int tile = 0; tile < Tile::kWarpChannels / 8; ++tile) {
    const int channel = quarter * Tile::kWarpChannels + tile * 8 + lane % 4 * 2;
    const float low = state.acc[tile][row * 2] * inverse;
    const float high = state.acc[tile][row * 2 + 1] * inverse;
    if (a.latent_dim % 2 == 0) {
      if (channel < a.latent_dim) *reinterpret_cast<uint32_t*>(out + channel) = pack_bf16(low, high);
    } else {
      if (channel < a.latent_dim) out[channel] = float_to_bf16(low);
      if (channel + 1 < a.latent_dim) out[channel + 1] = float_to_bf16(high);
    }
  }
}

/// Stores one of a lane's rows of a split.
template <class Tile>
__device__ void store_partial(const LatentParams& a, size_t partial, int row, int lane, int quarter,
                              const typename Tile::State& state) {
  if (quarter == 0 && lane % 4 == 0) a.partial_sums[partial] = float2{state.max[row], state.sum[row]};
  float* const to = a.partial_acc + partial * Tile::kLatent + quarter * Tile::kWarpChannels + lane % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < Tile::kWarpChannels / 8; ++tile)
    *reinterpret_cast<float2*>(to + tile * 8) = float2{state.acc[tile][row * 2], state.acc[tile][row * 2 + 1]};
}

/// Calls store(pair, row of the lane) for the lane's rows that exist.
template <class Store>
__device__ void for_own_rows(const LatentRows& rows, int lane, const Store& store) {
  const int32_t first = rows.first + static_cast<int32_t>(threadIdx.x) / kLanes / kQuarters * kWarpRows + lane / 4;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (first + row * 8 < rows.total) store(first + row * 8, row);
  }
}

/// Computes the results of a block's pairs, which walk over all their keys.
template <class Tile>
__device__ void compute_tile(const LatentParams& a, const LatentRows& rows) {
  const int lane = threadIdx.x % kLanes;
  const int quarter = threadIdx.x / kLanes % kQuarters;
  typename Tile::State state;
  typename Tile::State total;
  walk_latents<Tile>(a, rows, 0, rows.position(a, rows.first + kTileRows - 1) + 1, state,
                     [&](typename Tile::State& split) {
                       reduce_row_sums<Tile::kWarpChannels>(split);
                       SoftmaxMerge merge[2];
#pragma unroll
                       for (int i = 0; i < 2; ++i) {
                         merge[i] = merge_max(total.max[i], split.max[i]);
                         total.sum[i] = merge_value(merge[i], total.sum[i], split.sum[i]);
                       }
#pragma unroll
                       for (int tile = 0; tile < Tile::kWarpChannels / 8; ++tile) {
#pragma unroll
                         for (int i = 0; i < 4; ++i)
                           total.acc[tile][i] = merge_value(merge[i / 2], total.acc[tile][i], split.acc[tile][i]);
                       }
                       split = {};
                     });
  for_own_rows(rows, lane, [&](int32_t pair, int row) { store_row<Tile>(a, rows, pair, row, lane, quarter, total); });
}

/// Computes one split of a block's pairs, from key `begin` on, if they see it. `slot` is its number among the partial
/// results.
template <class Tile>
__device__ void compute_split(const LatentParams& a, const LatentRows& rows, int32_t begin, int32_t slot) {
  const int32_t end = min(begin + kSplitKeys, rows.position(a, rows.first + kTileRows - 1) + 1);
  if (begin >= end) return;
  const int lane = threadIdx.x % kLanes;
  const int quarter = threadIdx.x / kLanes % kQuarters;
  typename Tile::State state;
  walk_latents<Tile>(a, rows, begin, end, state,
                     [](typename Tile::State& split) { reduce_row_sums<Tile::kWarpChannels>(split); });
  for_own_rows(rows, lane, [&](int32_t pair, int row) {
    store_partial<Tile>(a, partial_of(a, slot, pair), row, lane, quarter, state);
  });
}

/// Grid: [tiles]. A block's pairs walk over all their keys.
template <class Tile>
__global__ void __launch_bounds__(kLatentThreads, 1) latent_tile_kernel(LatentParams a) {
  // The last tiles have the most keys, so they start first.
  const LatentRows rows = find_tile<kTileRows>(a, static_cast<int32_t>(gridDim.x - 1 - blockIdx.x));
  if (rows.sequence >= 0 && !takes_splits(a, rows.sequence)) compute_tile<Tile>(a, rows);
}

/// Grid: [splits of all sequences, tiles of a sequence's pairs]: one split of 32 pairs per block.
template <class Tile>
__global__ void __launch_bounds__(kLatentThreads, 1) latent_split_kernel(LatentParams a) {
  const auto slot = static_cast<int32_t>(blockIdx.x);
  const int32_t sequence = range_of(a.batch.split_begin, *a.batch.sequence_count, slot);
  if (sequence < 0 || !takes_splits(a, sequence)) return;
  const LatentRows rows = rows_of(a, sequence, static_cast<int32_t>(blockIdx.y) * kTileRows);
  if (rows.first < rows.total) compute_split<Tile>(a, rows, (slot - a.batch.split_begin[sequence]) * kSplitKeys, slot);
}

/// Grid: [tiles of all rows]. Each block has heads of one row.
template <class Tile>
__global__ void __launch_bounds__(kLatentThreads, 1) sparse_latent_tile_kernel(LatentParams a, SparseRows sparse) {
  const LatentRows rows = sparse.rows_of<kTileRows>(a, static_cast<int32_t>(blockIdx.x));
  if (rows.sequence >= 0) compute_tile<Tile>(a, rows);
}

/// Grid: [tiles of all rows, splits].
template <class Tile>
__global__ void __launch_bounds__(kLatentThreads, 1) sparse_latent_split_kernel(LatentParams a, SparseRows sparse) {
  const LatentRows rows = sparse.rows_of<kTileRows>(a, static_cast<int32_t>(blockIdx.x));
  const auto split = static_cast<int32_t>(blockIdx.y);
  if (rows.sequence >= 0) compute_split<Tile>(a, rows, split * kSplitKeys, sparse.slot(rows, split));
}

template <class Tile>
void launch_attention(cudaStream_t stream, const LatentParams& a, const BatchBounds& bounds) {
  if (a.split_rows > 0) {
    launch<latent_split_kernel<Tile>>({.name = "latent attention over splits",
                                       .grid = dim3(bounds.splits, ceil_div(a.split_rows * a.head_count, kTileRows)),
                                       .block = dim3(kLatentThreads),
                                       .shared_bytes = Tile::kSharedBytes},
                                      stream, a);
    launch_latent_merge<Tile>(stream, a, bounds);
    if (bounds.sequence_rows <= a.split_rows) return;
  }
  const auto tiles = static_cast<int32_t>(static_cast<int64_t>(a.rows) * a.head_count / kTileRows) + bounds.sequences;
  launch<latent_tile_kernel<Tile>>({.name = "latent attention",
                                    .grid = dim3(tiles),
                                    .block = dim3(kLatentThreads),
                                    .shared_bytes = Tile::kSharedBytes},
                                   stream, a);
}

template <class Tile>
void launch_sparse_attention(cudaStream_t stream, const LatentParams& a, const SparseRows& sparse) {
  const int32_t tiles = a.rows * ceil_div(a.head_count, kTileRows);
  const LaunchShape shape{.name = "sparse latent attention",
                          .grid = dim3(tiles),
                          .block = dim3(kLatentThreads),
                          .shared_bytes = Tile::kSharedBytes};
  if (sparse.splits == 0) return launch<sparse_latent_tile_kernel<Tile>>(shape, stream, a, sparse);
  LaunchShape splits = shape;
  splits.grid = dim3(tiles, sparse.splits);
  launch<sparse_latent_split_kernel<Tile>>(splits, stream, a, sparse);
  launch_sparse_merge<Tile>(stream, a, sparse);
}

}  // namespace
}  // namespace millrace::cuda
