#pragma once

// GEMM whose sums consist of shards that are added in a binary tree, so that ranks can divide them.

#include "cuda/gemm.cuh"

namespace millrace::cuda {

template <class T>
__device__ void add_accumulators(const Accumulators<T>& earlier, Accumulators<T>& sums) {
#pragma unroll
  for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < T::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] += earlier[m][n][i];
    }
  }
}

template <class T>
__device__ void copy_accumulators(const Accumulators<T>& from, Accumulators<T>& to) {
#pragma unroll
  for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < T::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[m][n][i] = from[m][n][i];
    }
  }
}

/// Stores to shared memory a tile's sums over the shards [first, last), which are a subtree. Sums that wait are in
/// local memory, since registers have no room for them.
template <class T, class Rows>
__device__ __forceinline__ void compute_shards(const GemmParams& p, const Rows& rows, int32_t first_panel,
                                               int32_t first, int32_t last, float* tile) {
  GemmMainloop<T, Rows> walk(p, rows, first_panel, p.shards.begin[first], p.shards.begin[last]);
  Accumulators<T> waiting[kWaitingSums];
  Accumulators<T> sums;
  int depth = 0;
#pragma unroll 1
  for (int32_t shard = 0; shard < last - first; ++shard) {
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < T::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
      }
    }
    walk.run_until(p.shards.begin[first + shard + 1], sums);
#pragma unroll 1
    for (int32_t completed = shard; (completed & 1) != 0; completed >>= 1) add_accumulators<T>(waiting[--depth], sums);
    if (shard + 1 < last - first) copy_accumulators<T>(sums, waiting[depth++]);
  }
  wait_copies<0>();
  __syncthreads();
  store_accumulators<T>(sums, tile);
  __syncthreads();
}

/// Publishes this shard's tile. Returns true in the last block to arrive, whose tile then holds the sum of all shards.
template <class T>
__device__ bool reduce_shards(const GemmParams& p, int32_t tile_index, int32_t tiles, int32_t shard, float* tile) {
  constexpr int kSums = T::kTokenCount * T::kFeatures;
  const auto address = [&](int i) {
    return reinterpret_cast<float4*>(tile + i / T::kFeatures * T::kSumStride + i % T::kFeatures);
  };
  const auto partial = [&](int32_t s, int i) {
    return reinterpret_cast<float4*>(p.partials + (static_cast<size_t>(s) * tiles + tile_index) * kSums + i);
  };
  for (int i = threadIdx.x * 4; i < kSums; i += T::kThreads * 4) *partial(shard, i) = *address(i);
  if (!arrives_last<T>(p, tile_index)) return false;
  for (int i = threadIdx.x * 4; i < kSums; i += T::kThreads * 4) {
    *address(i) = add_partials(p.splits, [&](int32_t s) { return partial(s, i); });
  }
  __syncthreads();
  return true;
}

/// Grid: [token tiles, feature tiles, shards or 1]. With one block for all shards it adds their sums itself; otherwise
/// the last block of a tile does.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks) sharded_gemm_kernel(GemmParams p) {
  const RowRange rows{static_cast<int32_t>(blockIdx.x) * T::kTokenCount, p.rows};
  const int32_t first_panel = static_cast<int32_t>(blockIdx.y) * T::kPanelCount;
  const auto shard = static_cast<int32_t>(blockIdx.z);
  const bool alone = gridDim.z == 1;
  auto* const tile = reinterpret_cast<float*>(shared_memory());
  compute_shards<T>(p, rows, first_panel, shard, alone ? p.shards.count : shard + 1, tile);
  const auto tile_index = static_cast<int32_t>(blockIdx.y * gridDim.x + blockIdx.x);
  if (!alone && !reduce_shards<T>(p, tile_index, static_cast<int32_t>(gridDim.x * gridDim.y), shard, tile)) return;
  run_epilogue<T>(p, rows, (p.first_panel + first_panel) * kPanelRows, tile);
}

}  // namespace millrace::cuda
