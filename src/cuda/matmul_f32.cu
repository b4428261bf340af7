#include "cuda/mma.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kChunk = 4;  ///< inputs that a lane multiplies at once

struct F32Product {
  const uint16_t* x = nullptr;    // [rows, inputs]
  const float* weight = nullptr;  // [features, inputs]
  const float* bias = nullptr;    // [features] or null
  int32_t rows = 0;
  int32_t inputs = 0;
  int32_t features = 0;
  void* out = nullptr;  // [rows, features]
  OutputType type = OutputType::kF32;
};

/// Reads the chunk of a weight's row that begins with `input`; zeros after the end.
__device__ inline void read_chunk(const F32Product& p, int32_t feature, int32_t input, float (&values)[kChunk]) {
  const float* const from = p.weight + static_cast<size_t>(feature) * p.inputs + input;
  if (p.inputs % kChunk == 0) {
    const float4 read = *reinterpret_cast<const float4*>(from);
    values[0] = read.x;
    values[1] = read.y;
    values[2] = read.z;
    values[3] = read.w;
    return;
  }
  for (int i = 0; i < kChunk; ++i) values[i] = input + i < p.inputs ? from[i] : 0.0f;
}
/// Reads the same of a row of x.
__device__ inline void read_chunk_of_x(const F32Product& p, int32_t row, int32_t input, float (&values)[kChunk]) {
  const uint16_t* const from = p.x + static_cast<size_t>(row) * p.inputs + input;
  if (p.inputs % kChunk == 0) {
    const uint2 read = *reinterpret_cast<const uint2*>(from);
    values[0] = bf16_to_float(static_cast<uint16_t>(read.x));
    values[1] = bf16_to_float(static_cast<uint16_t>(read.x >> 16));
    values[2] = bf16_to_float(static_cast<uint16_t>(read.y));
    values[3] = bf16_to_float(static_cast<uint16_t>(read.y >> 16));
    return;
  }
  for (int i = 0; i < kChunk; ++i) values[i] = input + i < p.inputs ? bf16_to_float(from[i]) : 0.0f;
}

__device__ inline void store_sum(const F32Product& p, int32_t row, int32_t feature, float sum) {
  const float value = p.bias == nullptr ? sum : sum + p.bias[feature];
  const size_t at = static_cast<size_t>(row) * p.features + feature;
  if (p.type == OutputType::kF32) {
    static_cast<float*>(p.out)[at] = value;
  } else {
    static_cast<uint16_t*>(p.out)[at] = float_to_bf16(value);
  }
}

/// Grid: [blocks of features, blocks of rows]. A warp computes kRows rows of kFeatures features. Each sum is the same
/// operations in the same order for any kRows and kFeatures: of every 128 inputs a lane adds four.
template <int kRows, int kFeatures>
__global__ void __launch_bounds__(kWarps* kLanes) matmul_f32_kernel(F32Product p) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const auto warp = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / kLanes);
  const int32_t first_feature = warp * kFeatures;
  const int32_t first_row = static_cast<int32_t>(blockIdx.y) * kRows;
  if (first_feature >= p.features) return;
  float sums[kRows][kFeatures] = {};
  for (int32_t input = lane * kChunk; input < p.inputs; input += kLanes * kChunk) {
    float weights[kFeatures][kChunk];
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) read_chunk(p, min(first_feature + f, p.features - 1), input, weights[f]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float x[kChunk];
      read_chunk_of_x(p, min(first_row + r, p.rows - 1), input, x);
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) sums[r][f] = __fmaf_rn(x[i], weights[f][i], sums[r][f]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) {
      const float sum = warp_sum(sums[r][f]);
      if (lane == 0 && first_row + r < p.rows && first_feature + f < p.features)
        store_sum(p, first_row + r, first_feature + f, sum);
    }
  }
}

template <int kRows, int kFeatures>
void launch_tiles(cudaStream_t stream, const F32Product& p) {
  const dim3 grid(ceil_div(p.features, kWarps * kFeatures), ceil_div(p.rows, kRows));
  launch<matmul_f32_kernel<kRows, kFeatures>>({"matmul_f32", grid, dim3(kWarps * kLanes)}, stream, p);
}

}  // namespace

void matmul_f32(cudaStream_t stream, const void* x, const float* weight, const float* bias, int32_t rows,
                int32_t inputs, int32_t features, void* out, OutputType type) {
  constexpr int32_t kFewRows = 8;
  const F32Product product{.x = static_cast<const uint16_t*>(x),
                           .weight = weight,
                           .bias = bias,
                           .rows = rows,
                           .inputs = inputs,
                           .features = features,
                           .out = out,
                           .type = type};
  if (rows <= kFewRows) return launch_tiles<1, 1>(stream, product);
  launch_tiles<8, 4>(stream, product);
}

}  // namespace millrace::cuda
