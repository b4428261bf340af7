#pragma once

#include "cuda/device.h"
#include "cuda/latent_kernels.h"
#include "cuda/weights.h"
#include "tensor/backend.h"

/// The ops of latent attention as Backend has them; private to this folder.
namespace millrace::cuda {

/// The expansion of latents per head in device memory.
class CudaLatentExpansion final : public tensor::LatentExpansion {
 public:
  CudaLatentExpansion(tensor::Buffer queries, tensor::Buffer values, int32_t heads)
      : queries_(std::move(queries)), values_(std::move(values)), heads_(heads) {}
  [[nodiscard]] int32_t heads() const { return heads_; }
  [[nodiscard]] DeviceExpansion get() const { return {queries_.data(), values_.data()}; }

 private:
  tensor::Buffer queries_;  // [heads] packed [latent_dim, nope_dim]
  tensor::Buffer values_;   // [heads] packed [value_dim, latent_dim]
  int32_t heads_;
};

/// Implements Backend::pack_latent_expansion.
[[nodiscard]] std::unique_ptr<CudaLatentExpansion> pack_latent_expansion(WeightLoader& loader,
                                                                         const tensor::HostTensor& kv_b,
                                                                         const tensor::LatentShape& shape);
/// Implements Backend::store_latent.
void store_latents(Device& device, tensor::Matrix kv, const tensor::LatentShape& shape,
                   const tensor::RotaryTable& rotary, const tensor::DeviceVector& norm, float norm_epsilon,
                   const tensor::UploadedBatch& batch, tensor::KvCache& cache, int32_t layer);
/// Implements Backend::latent_attention.
void attend_to_latents(Device& device, tensor::Matrix q, const tensor::LatentShape& shape,
                       const tensor::RotaryTable& rotary, const tensor::LatentExpansion& expansion,
                       const tensor::UploadedBatch& batch, const tensor::KvCache& cache, int32_t layer,
                       tensor::Matrix out);

/// Implements Backend::sparse_latent_attention.
void attend_to_chosen(Device& device, tensor::Matrix q, const tensor::LatentShape& shape,
                      const tensor::RotaryTable& rotary, const tensor::LatentExpansion& expansion,
                      tensor::IntMatrix chosen, const tensor::UploadedBatch& batch, const tensor::KvCache& cache,
                      int32_t layer, tensor::Matrix out);
/// Implements Backend::store_index_key.
void store_index_keys(Device& device, tensor::Matrix key, const tensor::IndexerShape& shape,
                      const tensor::RotaryTable& rotary, const tensor::DeviceVector& norm,
                      const tensor::DeviceVector& norm_bias, float norm_epsilon, const tensor::UploadedBatch& batch,
                      tensor::KvCache& cache, int32_t layer);
/// Implements Backend::choose_tokens.
void choose_by_index(Device& device, tensor::Matrix q, tensor::Matrix weights, const tensor::IndexerShape& shape,
                     const tensor::RotaryTable& rotary, const tensor::UploadedBatch& batch,
                     const tensor::KvCache& cache, int32_t layer, tensor::IntMatrix chosen);

}  // namespace millrace::cuda
