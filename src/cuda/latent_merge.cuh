#pragma once

// The merge of the splits of latent attention, by either instruction.

#include "cuda/latent_block.cuh"

namespace millrace::cuda {
namespace {

constexpr int kMergeThreads = 128;

/// Merges the splits of one pair in order, from slot `first_slot` on.
template <int kLatent, int32_t kTileSplitKeys>
__device__ void merge_pair(const LatentParams& a, const LatentRows& rows, int32_t pair, int32_t first_slot) {
  const int channel = static_cast<int>(threadIdx.x) * (kLatent / kMergeThreads);
  constexpr int kOwn = kLatent / kMergeThreads;
  float best = kInitialMax;
  float sum = 0.0f;
  float acc[kOwn] = {};
  const int32_t end = rows.position(a, pair) / kTileSplitKeys + 1;
#pragma unroll 4
  for (int32_t split = 0; split < end; ++split) {
    const size_t partial = partial_of(a, first_slot + split, pair);
    const float2 further = a.partial_sums[partial];
    const SoftmaxMerge merge = merge_max(best, further.x);
    sum = merge_value(merge, sum, further.y);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) acc[i] = merge_value(merge, acc[i], a.partial_acc[partial * kLatent + channel + i]);
  }
  const float inverse = 1.0f / sum;
  uint16_t* const out = a.out + rows.matrix_row(a, pair) * a.latent_dim;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (channel + i < a.latent_dim) out[channel + i] = float_to_bf16(acc[i] * inverse);
  }
}

/// Grid: [split_rows · heads, sequences].
template <int kLatent, int32_t kTileSplitKeys>
__global__ void __launch_bounds__(kMergeThreads) latent_merge_kernel(LatentParams a) {
  const auto sequence = static_cast<int32_t>(blockIdx.y);
  if (sequence >= *a.batch.sequence_count || !takes_splits(a, sequence)) return;
  const auto pair = static_cast<int32_t>(blockIdx.x);
  const LatentRows rows = rows_of(a, sequence, 0);
  if (pair < rows.total) merge_pair<kLatent, kTileSplitKeys>(a, rows, pair, split_slot(a, sequence, 0));
}

/// Grid: [heads, rows].
template <int kLatent, int32_t kTileSplitKeys>
__global__ void __launch_bounds__(kMergeThreads) sparse_latent_merge_kernel(LatentParams a, SparseRows sparse) {
  const LatentRows rows = sparse.row_of(a, static_cast<int32_t>(blockIdx.y), 0);
  if (rows.sequence >= 0)
    merge_pair<kLatent, kTileSplitKeys>(a, rows, static_cast<int32_t>(blockIdx.x), sparse.slot(rows, 0));
}

template <class Tile>
void launch_sparse_merge(cudaStream_t stream, const LatentParams& a, const SparseRows& sparse) {
  launch<sparse_latent_merge_kernel<Tile::kLatent, Tile::kTileSplitKeys>>(
      {"sparse latent attention merge", dim3(a.head_count, a.rows), dim3(kMergeThreads)}, stream, a, sparse);
}

template <class Tile>
void launch_latent_merge(cudaStream_t stream, const LatentParams& a, const BatchBounds& bounds) {
  launch<latent_merge_kernel<Tile::kLatent, Tile::kTileSplitKeys>>(
      {"latent attention merge", dim3(a.split_rows * a.head_count, bounds.sequences), dim3(kMergeThreads)}, stream, a);
}

}  // namespace
}  // namespace millrace::cuda
