#pragma once

// The kernels of latent attention by wgmma: one for splits of few rows, and one for rows that walk over all keys.

#include "cuda/latent_merge.cuh"
#include "cuda/latent_wide_block.cuh"

namespace millrace::cuda {
namespace {

/// Maximum of blocks that compute tiles in turn. Each has room for the sums of earlier splits.
constexpr int32_t kWideBlocks = 264;

/// The sums of one block's earlier splits: maxima and sums in shared memory, and the output in scratch, whose order
/// follows the threads, so that accesses are contiguous.
template <class Tile>
class WideTotals {
 public:
  __device__ explicit WideTotals(float* scratch)
      : acc_(reinterpret_cast<float4*>(scratch) + blockIdx.x * (Tile::kTotalBytes / sizeof(float4)) + threadIdx.x) {}
  /// Merges a split's state, which becomes the sums so far; `begin` is its first key. Keeps them where another follows,
  /// else stores the inverse of each pair's sum in factors(0). All threads of the block call it.
  __device__ void merge(const WideThread& me, int32_t begin, bool is_last, WideState<Tile>& state) const {
    for_own_pairs<Tile>([&](int tile, int i) {
      if (me.leads()) merge_sums(me.own_pair<Tile>(tile) + i, begin, state.max[tile][i], state.sum[tile][i]);
    });
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < Tile::kPairTiles; ++tile) {
      const int pair = tile * 8 + me.lane % 4 * 2;
      const SoftmaxMerge low{Tile::factors(0)[pair], Tile::factors(1)[pair]};
      const SoftmaxMerge high{Tile::factors(0)[pair + 1], Tile::factors(1)[pair + 1]};
#pragma unroll
      for (int panel = 0; panel < Tile::kGroupPanels; ++panel) {
        float4* const kept = acc_ + (panel * Tile::kPairTiles + tile) * kWideThreads;
        float(&acc)[4] = state.acc[panel][tile];
        const float4 total = begin == 0 ? float4{0.0f, 0.0f, 0.0f, 0.0f} : *kept;
        acc[0] = merge_value(low, total.x, acc[0]);
        acc[1] = merge_value(high, total.y, acc[1]);
        acc[2] = merge_value(low, total.z, acc[2]);
        acc[3] = merge_value(high, total.w, acc[3]);
        if (!is_last) *kept = float4{acc[0], acc[1], acc[2], acc[3]};
      }
      __syncwarp();  // without it the loads of all tiles come first, for which there are no registers
    }
    __syncthreads();  // no warp reads the factors any more
    if (!is_last) return state.reset();
    for_own_pairs<Tile>([&](int tile, int i) {
      const int pair = me.own_pair<Tile>(tile) + i;
      if (me.leads()) Tile::factors(0)[pair] = 1.0f / Tile::total_sum()[pair];
    });
    __syncthreads();
  }

 private:
  __device__ static void merge_sums(int pair, int32_t begin, float max, float sum) {
    float best = begin == 0 ? kInitialMax : Tile::total_max()[pair];
    const SoftmaxMerge merge = merge_max(best, max);
    Tile::total_sum()[pair] = merge_value(merge, begin == 0 ? 0.0f : Tile::total_sum()[pair], sum);
    Tile::total_max()[pair] = best;
    Tile::factors(0)[pair] = merge.keep;
    Tile::factors(1)[pair] = merge.add;
  }

  float4* const acc_;  // [panel of the warpgroup][pair tile][thread of the block]
};

/// Returns the channel of a value of a thread's output.
template <class Tile>
__device__ int wide_channel(const WideThread& me, int panel, int i) {
  return (me.group * Tile::kGroupPanels + panel) * kStepInputs + me.warp * 16 + me.lane / 4 + i / 2 * 8;
}

/// Computes the results of a block's pairs, which walk over all their keys.
template <class Tile>
__device__ void compute_wide_tile(const LatentParams& a, const LatentRows& rows) {
  const WideThread me;
  const int32_t end = rows.position(a, rows.first + Tile::kPairs - 1) + 1;
  WideState<Tile> state;
  WideTotals<Tile> totals(a.totals);
  walk_wide_latents<Tile>(a, rows, 0, end, state, [&](int32_t next) {
    reduce_wide_sums<Tile>(me, state);
    totals.merge(me, (next - 1) / kWideSplitKeys * kWideSplitKeys, next >= end, state);
  });
  state.for_acc([&](float value, int panel, int pair_tile, int i) {
    const int own = pair_tile * 8 + me.lane % 4 * 2 + i % 2;
    const int channel = wide_channel<Tile>(me, panel, i);
    if (rows.first + own >= rows.total || channel >= a.latent_dim) return;
    a.out[rows.matrix_row(a, rows.first + own) * a.latent_dim + channel] = float_to_bf16(value * Tile::factors(0)[own]);
  });
  __syncthreads();  // no warp reads the factors any more
}

/// Computes one split of a block's pairs, from key `begin` on, if they see it. `slot` is its number among the partial
/// results.
template <class Tile>
__device__ void compute_wide_split(const LatentParams& a, const LatentRows& rows, int32_t begin, int32_t slot) {
  const int32_t end = min(begin + kWideSplitKeys, rows.position(a, rows.first + Tile::kPairs - 1) + 1);
  if (begin >= end) return;
  const WideThread me;
  const auto partial = [&](int own) { return partial_of(a, slot, rows.first + own); };
  WideState<Tile> state;
  walk_wide_latents<Tile>(a, rows, begin, end, state, [&](int32_t) { reduce_wide_sums<Tile>(me, state); });
  for_own_pairs<Tile>([&](int tile, int i) {
    const int own = me.own_pair<Tile>(tile) + i;
    if (!me.leads() || rows.first + own >= rows.total) return;
    a.partial_sums[partial(own)] = float2{state.max[tile][i], state.sum[tile][i]};
  });
  state.for_acc([&](float value, int panel, int tile, int i) {
    const int own = tile * 8 + me.lane % 4 * 2 + i % 2;
    if (rows.first + own < rows.total)
      a.partial_acc[partial(own) * Tile::kLatent + wide_channel<Tile>(me, panel, i)] = value;
  });
}

/// Grid: blocks that take the tiles of kPairs pairs in turn.
template <class Tile>
__global__ void __launch_bounds__(kWideThreads, 1) wide_latent_tile_kernel(LatentParams a, int32_t tiles) {
  // The last tiles have the most keys, so they start first.
  for (int32_t tile = tiles - 1 - static_cast<int32_t>(blockIdx.x); tile >= 0;
       tile -= static_cast<int32_t>(gridDim.x)) {
    const LatentRows rows = find_tile<Tile::kPairs>(a, tile);
    if (rows.sequence >= 0 && !takes_splits(a, rows.sequence)) compute_wide_tile<Tile>(a, rows);
  }
}

/// Grid: [splits of all sequences, tiles of a sequence's pairs]: one split of kPairs pairs per block. A block takes as
/// many splits of DeviceBatch as its own split has, and the blocks of the others end at once.
template <class Tile>
__global__ void __launch_bounds__(kWideThreads, 1) wide_latent_split_kernel(LatentParams a) {
  const auto slot = static_cast<int32_t>(blockIdx.x);
  const int32_t sequence = range_of(a.batch.split_begin, *a.batch.sequence_count, slot);
  if (sequence < 0 || !takes_splits(a, sequence)) return;
  const int32_t begin = (slot - a.batch.split_begin[sequence]) * kSplitKeys;
  const LatentRows rows = rows_of(a, sequence, static_cast<int32_t>(blockIdx.y) * Tile::kPairs);
  if (begin % kWideSplitKeys == 0 && rows.first < rows.total)
    compute_wide_split<Tile>(a, rows, begin, split_slot(a, sequence, begin / kWideSplitKeys));
}

/// Grid: blocks that take the tiles of all rows in turn. Each tile has heads of one row.
template <class Tile>
__global__ void __launch_bounds__(kWideThreads, 1)
    sparse_wide_latent_tile_kernel(LatentParams a, SparseRows sparse, int32_t tiles) {
  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < tiles; tile += static_cast<int32_t>(gridDim.x)) {
    const LatentRows rows = sparse.rows_of<Tile::kPairs>(a, tile);
    if (rows.sequence >= 0) compute_wide_tile<Tile>(a, rows);
  }
}

/// Grid: [tiles of all rows, splits].
template <class Tile>
__global__ void __launch_bounds__(kWideThreads, 1) sparse_wide_latent_split_kernel(LatentParams a, SparseRows sparse) {
  const LatentRows rows = sparse.rows_of<Tile::kPairs>(a, static_cast<int32_t>(blockIdx.x));
  const auto split = static_cast<int32_t>(blockIdx.y);
  if (rows.sequence >= 0) compute_wide_split<Tile>(a, rows, split * kWideSplitKeys, sparse.slot(rows, split));
}

template <class Tile>
void launch_sparse_wide_attention(cudaStream_t stream, const LatentParams& a, const SparseRows& sparse) {
  const int32_t tiles = a.rows * ceil_div(a.head_count, Tile::kPairs);
  LaunchShape shape{.name = "sparse latent attention by wgmma",
                    .grid = dim3(tiles < kWideBlocks ? tiles : kWideBlocks),
                    .block = dim3(kWideThreads),
                    .shared_bytes = Tile::kSharedBytes};
  if (sparse.splits == 0) return launch<sparse_wide_latent_tile_kernel<Tile>>(shape, stream, a, sparse, tiles);
  shape.grid = dim3(tiles, sparse.splits);
  launch<sparse_wide_latent_split_kernel<Tile>>(shape, stream, a, sparse);
  launch_sparse_merge<Tile>(stream, a, sparse);
}

template <class Tile>
void launch_wide_attention(cudaStream_t stream, const LatentParams& a, const BatchBounds& bounds) {
  if (a.split_rows > 0) {
    const int32_t pairs = a.split_rows * a.head_count;
    launch<wide_latent_split_kernel<Tile>>({.name = "latent attention over splits by wgmma",
                                            .grid = dim3(bounds.splits, ceil_div(pairs, Tile::kPairs)),
                                            .block = dim3(kWideThreads),
                                            .shared_bytes = Tile::kSharedBytes},
                                           stream, a);
    launch_latent_merge<Tile>(stream, a, bounds);
    if (bounds.sequence_rows <= a.split_rows) return;
  }
  const auto tiles =
      static_cast<int32_t>(static_cast<int64_t>(a.rows) * a.head_count / Tile::kPairs) + bounds.sequences;
  launch<wide_latent_tile_kernel<Tile>>({.name = "latent attention by wgmma",
                                         .grid = dim3(tiles < kWideBlocks ? tiles : kWideBlocks),
                                         .block = dim3(kWideThreads),
                                         .shared_bytes = Tile::kSharedBytes},
                                        stream, a, tiles);
}

}  // namespace
}  // namespace millrace::cuda
