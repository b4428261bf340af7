#pragma once

#include "cuda/kernels.h"

/// Further ops on rows, each by itself. Rules: kernels.h. A value that is not finite reaches no other row.
namespace millrace::cuda {

/// out [rows, features] = x (bf16) [rows, inputs] · weight (f32) [features, inputs]ᵀ + bias (f32, may be null). The sum
/// of a feature has one order for any number of rows.
void matmul_f32(cudaStream_t stream, const void* x, const float* weight, const float* bias, int32_t rows,
                int32_t inputs, int32_t features, void* out, OutputType type);
/// hidden (f32) [rows, width] += table (bf16) [vocab, width] [indices[r]]. An index outside the table adds nothing.
void add_embedding(cudaStream_t stream, const void* table, int32_t vocab, int32_t width, const int32_t* indices,
                   int32_t rows, float* hidden);
/// out (bf16) [rows, width] = (hidden - mean) / sqrt(variance + epsilon) · weight + bias; `bias` may be null. With
/// `in_place` hidden (f32) also becomes that.
void layer_norm(cudaStream_t stream, float* hidden, const float* weight, const float* bias, float epsilon,
                bool in_place, int32_t rows, int32_t width, void* out);
/// Normalises the columns [first, first + width) of each row of values (f32) [rows, stride] in place: rms_norm ·
/// weight.
void rms_norm_columns(cudaStream_t stream, float* values, int32_t rows, int32_t stride, int32_t first, int32_t width,
                      const float* weight, float epsilon);
/// values (f32) [rows, width] = values · factor.
void scale(cudaStream_t stream, float* values, int32_t rows, int32_t width, float factor);
/// values (f32) [rows, width] = cap · tanh(values / cap).
void soft_cap(cudaStream_t stream, float* values, int32_t rows, int32_t width, float cap);
/// out (bf16) [rows, width] = x/2 · (1 + erf(x/√2)) of each x of in (f32).
void gelu(cudaStream_t stream, const float* in, int32_t rows, int32_t width, void* out);
/// out (bf16) [rows, width] = g(in[:, f]) · in[:, width + f] of in (f32) [rows, 2·width], with GELU by tanh.
void gelu_tanh_mul(cudaStream_t stream, const float* in, int32_t rows, int32_t width, void* out);
/// out (bf16) [rows, width] = g(gates (f32) [rows, width]) · factors (f32), with GELU by tanh. The rows of `factors`
/// are `factor_stride` apart.
void gelu_tanh_gate(cudaStream_t stream, const float* gates, const float* factors, int32_t factor_stride, int32_t rows,
                    int32_t width, void* out);
/// out (bf16) [rows, width] = silu(factor · in[:, f]) · in[:, width + f] of in (f32) [rows, 2·width].
void scaled_silu_mul(cudaStream_t stream, const float* in, float factor, int32_t rows, int32_t width, void* out);
/// out (bf16) [rows, width] = max(x, 0)² of each x of in (f32).
void relu_squared(cudaStream_t stream, const float* in, int32_t rows, int32_t width, void* out);
/// values (bf16) [rows, width] = values · sigmoid(gates (f32) [rows, width]).
void gate(cudaStream_t stream, void* values, const float* gates, int32_t rows, int32_t width);
/// hidden (f32) [rows, width] += sigmoid(gates[r]) · sums (f32) [rows, width].
void add_gated_sums(cudaStream_t stream, const float* sums, const float* gates, int32_t rows, int32_t width,
                    float* hidden);
/// hidden (f32) [rows, width] += factor · rms_norm(sums + bias) · norm. `bias` may be null; without `norm` hidden +=
/// factor · (sums + bias).
void add_scaled_sums(cudaStream_t stream, const float* sums, const float* bias, const float* norm, float epsilon,
                     float factor, int32_t rows, int32_t width, float* hidden);

}  // namespace millrace::cuda
