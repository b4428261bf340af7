#include "cuda/block_sum.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

__global__ void __launch_bounds__(kRowBlockThreads)
    rms_norm_kernel(const float* hidden, const float* weight, float epsilon, int32_t width, uint16_t* out) {
  const float* in = hidden + static_cast<size_t>(blockIdx.x) * width;
  uint16_t* to = out + static_cast<size_t>(blockIdx.x) * width;
  const int32_t wide = width % 4 == 0 ? width / 4 : 0;  // float4s
  float squares = 0.0f;
  for (int32_t i = threadIdx.x; i < wide; i += kRowBlockThreads) {
    const float4 x = reinterpret_cast<const float4*>(in)[i];
    squares += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
  }
  for (int32_t i = wide * 4 + threadIdx.x; i < width; i += kRowBlockThreads) squares += in[i] * in[i];
  const float mean = block_sum(squares, reinterpret_cast<float*>(shared_memory())) / static_cast<float>(width);
  const float inverse = 1.0f / sqrtf(mean + epsilon);
  for (int32_t i = threadIdx.x; i < wide; i += kRowBlockThreads) {
    const float4 x = reinterpret_cast<const float4*>(in)[i];
    const float4 w = reinterpret_cast<const float4*>(weight)[i];
    reinterpret_cast<uint2*>(to)[i] =
        uint2{pack_bf16(x.x * inverse * w.x, x.y * inverse * w.y), pack_bf16(x.z * inverse * w.z, x.w * inverse * w.w)};
  }
  for (int32_t i = wide * 4 + threadIdx.x; i < width; i += kRowBlockThreads)
    to[i] = float_to_bf16(in[i] * inverse * weight[i]);
}

/// Grid: [rows].
__global__ void __launch_bounds__(kRowBlockThreads)
    rms_norm_columns_kernel(float* values, int32_t stride, int32_t first, int32_t width, const float* weight,
                            float epsilon) {
  float* const row = values + static_cast<size_t>(blockIdx.x) * stride + first;
  float squares = 0.0f;
  for (int32_t i = threadIdx.x; i < width; i += kRowBlockThreads) squares += row[i] * row[i];
  const float mean = block_sum(squares, reinterpret_cast<float*>(shared_memory())) / static_cast<float>(width);
  const float inverse = 1.0f / sqrtf(mean + epsilon);
  for (int32_t i = threadIdx.x; i < width; i += kRowBlockThreads) row[i] = row[i] * inverse * weight[i];
}

}  // namespace

void rms_norm(cudaStream_t stream, const float* hidden, const float* weight, float epsilon, int32_t rows, int32_t width,
              void* out) {
  launch<rms_norm_kernel>({.name = "rms_norm",
                           .grid = dim3(rows),
                           .block = dim3(kRowBlockThreads),
                           .shared_bytes = kRowBlockWarps * sizeof(float)},
                          stream, hidden, weight, epsilon, width, static_cast<uint16_t*>(out));
}

void rms_norm_columns(cudaStream_t stream, float* values, int32_t rows, int32_t stride, int32_t first, int32_t width,
                      const float* weight, float epsilon) {
  launch<rms_norm_columns_kernel>({.name = "rms_norm_columns",
                                   .grid = dim3(rows),
                                   .block = dim3(kRowBlockThreads),
                                   .shared_bytes = kRowBlockWarps * sizeof(float)},
                                  stream, values, stride, first, width, weight, epsilon);
}

}  // namespace millrace::cuda
