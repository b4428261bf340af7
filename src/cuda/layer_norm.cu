#include "cuda/block_sum.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

struct LayerNorm {
  float* hidden = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  double epsilon = 0.0;
  int32_t width = 0;
  uint16_t* out = nullptr;
};

/// Grid: [rows]. Sums are f64, as on the CPU: the mean may be far larger than the deviation.
template <bool kInPlace>
__global__ void __launch_bounds__(kRowBlockThreads) layer_norm_kernel(LayerNorm norm) {
  auto* const means = reinterpret_cast<double*>(shared_memory());  // [warps]
  double* const deviations = means + kRowBlockWarps;               // [warps]
  float* const row = norm.hidden + static_cast<size_t>(blockIdx.x) * norm.width;
  uint16_t* const out = norm.out + static_cast<size_t>(blockIdx.x) * norm.width;
  const auto count = static_cast<double>(norm.width);
  double sum = 0.0;
  for (int32_t i = threadIdx.x; i < norm.width; i += kRowBlockThreads) sum += static_cast<double>(row[i]);
  const double mean = block_sum(sum, means) / count;
  double squares = 0.0;
  for (int32_t i = threadIdx.x; i < norm.width; i += kRowBlockThreads) {
    const double distance = static_cast<double>(row[i]) - mean;
    squares += distance * distance;
  }
  const double inverse = 1.0 / sqrt(block_sum(squares, deviations) / count + norm.epsilon);
  for (int32_t i = threadIdx.x; i < norm.width; i += kRowBlockThreads) {
    float value = static_cast<float>((static_cast<double>(row[i]) - mean) * inverse) * norm.weight[i];
    if (norm.bias != nullptr) value += norm.bias[i];
    if constexpr (kInPlace) row[i] = value;
    out[i] = float_to_bf16(value);
  }
}

}  // namespace

void layer_norm(cudaStream_t stream, float* hidden, const float* weight, const float* bias, float epsilon,
                bool in_place, int32_t rows, int32_t width, void* out) {
  const LaunchShape shape{.name = "layer_norm",
                          .grid = dim3(rows),
                          .block = dim3(kRowBlockThreads),
                          .shared_bytes = 2 * kRowBlockWarps * sizeof(double)};
  const LayerNorm norm{.hidden = hidden,
                       .weight = weight,
                       .bias = bias,
                       .epsilon = static_cast<double>(epsilon),
                       .width = width,
                       .out = static_cast<uint16_t*>(out)};
  if (in_place) {
    launch<layer_norm_kernel<true>>(shape, stream, norm);
  } else {
    launch<layer_norm_kernel<false>>(shape, stream, norm);
  }
}

}  // namespace millrace::cuda
