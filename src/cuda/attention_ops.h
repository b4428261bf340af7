#pragma once

#include "cuda/device.h"
#include "tensor/backend.h"

/// The ops of attention with keys and values per head as Backend has them; private to this folder.
namespace millrace::cuda {

/// Implements Backend::rotary_store_kv.
void store_heads(Device& device, tensor::Matrix qkv, const tensor::AttentionShape& shape,
                 const tensor::RotaryTable& rotary, const tensor::DeviceVector* q_norm,
                 const tensor::DeviceVector* k_norm, float norm_epsilon, const tensor::UploadedBatch& batch,
                 tensor::KvCache& cache, int32_t layer, tensor::Matrix q);
/// Implements Backend::attention.
void attend(Device& device, tensor::Matrix q, const tensor::AttentionShape& shape, const tensor::UploadedBatch& batch,
            const tensor::KvCache& cache, int32_t layer, tensor::Matrix out);

}  // namespace millrace::cuda
