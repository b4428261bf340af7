#pragma once

#include "cuda/device.h"
#include "cuda/weights.h"
#include "tensor/backend.h"

/// The ops of tensor::Backend that compute rows by themselves, on a device's compute stream. Each checks its matrices
/// and launches the kernel of its name. Called inside submitted work.
namespace millrace::cuda {

/// Implements Backend::matmul with a weight from pack_f32.
void matmul_f32(const Device& device, const tensor::Matrix& x, const CudaWeight& weight, const CudaVector* bias,
                const tensor::Matrix& out);
void add_embedding(const Device& device, const CudaEmbedding& table, const int32_t* indices, int64_t count,
                   const tensor::Matrix& hidden);
void layer_norm(const Device& device, const tensor::Matrix& hidden, const CudaVector& weight, const CudaVector* bias,
                float epsilon, bool in_place, const tensor::Matrix& out);
void convert(const Device& device, const tensor::Matrix& hidden, const tensor::Matrix& out);
void scale(const Device& device, const tensor::Matrix& matrix, float factor);
void soft_cap(const Device& device, const tensor::Matrix& matrix, float cap);
void gelu(const Device& device, const tensor::Matrix& in, const tensor::Matrix& out);
void gelu_tanh_mul(const Device& device, const tensor::Matrix& in, const tensor::Matrix& out);
void gelu_tanh_gate(const Device& device, const tensor::Matrix& gates, const tensor::Matrix& factors, int64_t first,
                    const tensor::Matrix& out);
void scaled_silu_mul(const Device& device, const tensor::Matrix& in, float factor, const tensor::Matrix& out);
void relu_squared(const Device& device, const tensor::Matrix& in, const tensor::Matrix& out);
void rms_norm_in_place(const Device& device, const tensor::Matrix& values, const CudaVector& weight, float epsilon);
void gate(const Device& device, const tensor::Matrix& values, const tensor::Matrix& gates);
void add_gated_sums(const Device& device, const tensor::Matrix& sums, const tensor::Matrix& gates,
                    const tensor::Matrix& hidden);
void add_scaled_sums(const Device& device, const tensor::Matrix& sums, const CudaVector* bias, const CudaVector* norm,
                     float epsilon, float factor, const tensor::Matrix& hidden);
/// Normalises the queries and the keys of qkv in place, each over all heads: what precedes rotary_store_kv where the
/// weights are not of one head.
void norm_all_heads(const Device& device, const tensor::Matrix& qkv, const CudaVector& q_norm, const CudaVector& k_norm,
                    float epsilon);

/// Fails unless a matrix has the dtype and the shape that an op wants.
void check_matrix(const char* name, const tensor::Matrix& matrix, tensor::DType dtype, int64_t rows, int64_t cols);

}  // namespace millrace::cuda
