#pragma once

#include "cuda/kv_cache.h"
#include "cuda/row_ops.h"
#include "cuda/submissions.h"
#include "cuda/weights.h"
#include "tensor/backend.h"

/// The arguments of Backend's ops as those of the kernels.
namespace millrace::cuda {

inline const CudaWeight& as_cuda(const tensor::PackedWeight& weight) {
  return static_cast<const CudaWeight&>(weight);
}
inline const CudaKvCache& as_cuda(const tensor::KvCache& cache) {
  return static_cast<const CudaKvCache&>(cache);
}
inline const CudaVector* as_cuda(const tensor::DeviceVector* vector) {
  return static_cast<const CudaVector*>(vector);
}
inline const float* values_of(const tensor::DeviceVector* vector) {
  return vector == nullptr ? nullptr : as_cuda(vector)->data();
}
inline const CudaBatch& as_cuda(const tensor::UploadedBatch& batch) {
  return *static_cast<const CudaBatch*>(batch.handle);
}
inline const int32_t* as_cuda(const tensor::UploadedIndices& indices) {
  return static_cast<const int32_t*>(indices.handle);
}
inline DeviceRotary rotary_of(const tensor::RotaryTable& rotary) {
  return {.inverse_frequency = values_of(rotary.inverse_frequency),
          .rotary_dim = rotary.rotary_dim,
          .attention_factor = rotary.attention_factor,
          .query_beta = rotary.query_beta,
          .query_period = rotary.query_period,
          .query_offset = rotary.query_offset};
}
inline float* floats(const tensor::Matrix& matrix) {
  return reinterpret_cast<float*>(matrix.data);
}

}  // namespace millrace::cuda
