#pragma once

#include "cuda/kernels.h"
#include "tensor/latent_shape.h"

/// The ops of latent attention on device memory; the rules of kernels.h hold. The cache is one of latents.
namespace millrace::cuda {

/// The maximum of values in a latent, and of values in a token's key, which follow from the kernels' tiles.
inline constexpr int32_t kMaxLatentDim = 512;
inline constexpr int32_t kMaxLatentKeyDim = 576;

/// Stores each row of kv (f32) [rows, latent_dim + rope_dim] in the pages of `layer`: the latent after an RMS norm with
/// weights (f32) [latent_dim], then the rotated key. A non-finite latent is stored as zeros with a NaN key.
void store_latent(cudaStream_t stream, const float* kv, const tensor::LatentShape& shape, const DeviceRotary& rotary,
                  const float* norm, float norm_epsilon, const DeviceBatch& batch, const BatchBounds& bounds,
                  const DeviceKvCache& cache, int32_t layer);

/// The expansion of latents per head: contiguous packed weights, [latent_dim, nope_dim] for the queries of a head and
/// [value_dim, latent_dim] for its values.
struct DeviceExpansion {
  const void* queries = nullptr;
  const void* values = nullptr;
};
/// Returns the scratch bytes of latent_attention for batches within `bounds`, at most 550 MiB, which then serves slices
/// of the rows. The scratch need not be zeroed.
[[nodiscard]] size_t latent_attention_workspace_bytes(const tensor::LatentShape& shape, const BatchBounds& bounds,
                                                      MatrixInstruction by);
/// Returns the dynamic shared memory, in bytes, of a block of latent_attention by kMma. Not every device has that much.
[[nodiscard]] size_t latent_attention_shared_bytes(const tensor::LatentShape& shape);
/// out (bf16) [rows, heads·value_dim] = causal attention of q (f32) [rows, heads·(nope_dim + rope_dim)], whose last
/// rope_dim channels per head it rotates, over the sequence's latents, own position included. One block reads a latent
/// once for 32 pairs of row and head, or by kWgmma for up to 64. With less scratch, down to that of one row, it works
/// in smaller slices with equal results. The two instructions may round differently.
void latent_attention(cudaStream_t stream, const float* q, const tensor::LatentShape& shape, const DeviceRotary& rotary,
                      const DeviceExpansion& expansion, const DeviceBatch& batch, const BatchBounds& bounds,
                      const DeviceKvCache& cache, int32_t layer, MatrixInstruction by, void* out, void* workspace,
                      size_t workspace_bytes);

/// Returns the scratch bytes of sparse_latent_attention; rules: latent_attention_workspace_bytes.
[[nodiscard]] size_t sparse_latent_attention_workspace_bytes(const tensor::LatentShape& shape, int32_t chosen_count,
                                                             const BatchBounds& bounds, MatrixInstruction by);
/// Computes latent_attention where rows at positions from chosen_count on see only the tokens in their row of `chosen`
/// [rows, chosen_count]. A block has heads of one row, and the sums are those of latent_attention over as many tokens.
void sparse_latent_attention(cudaStream_t stream, const float* q, const tensor::LatentShape& shape,
                             const DeviceRotary& rotary, const DeviceExpansion& expansion, const int32_t* chosen,
                             int32_t chosen_count, const DeviceBatch& batch, const BatchBounds& bounds,
                             const DeviceKvCache& cache, int32_t layer, MatrixInstruction by, void* out,
                             void* workspace, size_t workspace_bytes);

}  // namespace millrace::cuda
