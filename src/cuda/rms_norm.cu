#include "cuda/kernels.h"
#include "cuda/mma.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kLanes;

/// Returns the sum over the block, in a fixed order, to every thread.
__device__ float block_sum(float value) {
  auto* sums = reinterpret_cast<float*>(shared_memory());  // [warps]
  const float warp = warp_sum(value);
  if (threadIdx.x % kLanes == 0) sums[threadIdx.x / kLanes] = warp;
  __syncthreads();
  float total = sums[0];
  for (int w = 1; w < kWarps; ++w) total += sums[w];
  return total;
}

__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* hidden, const float* weight, float epsilon, int32_t width, uint16_t* out) {
  const float* in = hidden + static_cast<size_t>(blockIdx.x) * width;
  uint16_t* to = out + static_cast<size_t>(blockIdx.x) * width;
  const int32_t wide = width % 4 == 0 ? width / 4 : 0;  // float4s
  float squares = 0.0f;
  for (int32_t i = threadIdx.x; i < wide; i += kThreads) {
    const float4 x = reinterpret_cast<const float4*>(in)[i];
    squares += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
  }
  for (int32_t i = wide * 4 + threadIdx.x; i < width; i += kThreads) squares += in[i] * in[i];
  const float mean = block_sum(squares) / static_cast<float>(width);
  const float inverse = 1.0f / sqrtf(mean + epsilon);
  for (int32_t i = threadIdx.x; i < wide; i += kThreads) {
    const float4 x = reinterpret_cast<const float4*>(in)[i];
    const float4 w = reinterpret_cast<const float4*>(weight)[i];
    reinterpret_cast<uint2*>(to)[i] =
        uint2{pack_bf16(x.x * inverse * w.x, x.y * inverse * w.y), pack_bf16(x.z * inverse * w.z, x.w * inverse * w.w)};
  }
  for (int32_t i = wide * 4 + threadIdx.x; i < width; i += kThreads) to[i] = float_to_bf16(in[i] * inverse * weight[i]);
}

}  // namespace

void rms_norm(cudaStream_t stream, const float* hidden, const float* weight, float epsilon, int32_t rows, int32_t width,
              void* out) {
  launch<rms_norm_kernel>(
      {.name = "rms_norm", .grid = dim3(rows), .block = dim3(kThreads), .shared_bytes = kWarps * sizeof(float)}, stream,
      hidden, weight, epsilon, width, static_cast<uint16_t*>(out));
}

}  // namespace millrace::cuda
