#pragma once

#include "cuda/kernels.h"
#include "tensor/latent_shape.h"

/// The ops of an indexer on device memory; the rules of kernels.h hold. The cache is one of latents with the keys of an
/// indexer.
namespace millrace::cuda {

/// The maximum of channels of an indexer's head.
inline constexpr int32_t kMaxIndexDim = 256;

/// Stores each row of key (f32) [rows, head_dim] in the pages of `layer`: LayerNorm with weights and biases (f32)
/// [head_dim], then the rotation of the first channels. A key that is not finite becomes NaN, the largest score.
void store_index_key(cudaStream_t stream, const float* key, const tensor::IndexerShape& shape,
                     const DeviceRotary& rotary, const float* norm, const float* norm_bias, float norm_epsilon,
                     const DeviceBatch& batch, const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer);

/// Returns the scratch bytes of choose_tokens for batches within `bounds`, at most 256 MiB or what one row needs. It
/// then serves slices of the rows. The scratch need not be zeroed.
[[nodiscard]] size_t choose_tokens_workspace_bytes(const tensor::IndexerShape& shape, const BatchBounds& bounds);
/// Writes the positions that each row sees to `chosen` [rows, chosen_count]; contract: tensor::Backend. q (f32) [rows,
/// heads·head_dim], weights (f32) [rows, heads]. With less scratch, down to that of one row, it works in smaller slices
/// with equal results.
void choose_tokens(cudaStream_t stream, const float* q, const float* weights, const tensor::IndexerShape& shape,
                   const DeviceRotary& rotary, const DeviceBatch& batch, const BatchBounds& bounds,
                   const DeviceKvCache& cache, int32_t layer, int32_t* chosen, void* workspace, size_t workspace_bytes);

}  // namespace millrace::cuda
