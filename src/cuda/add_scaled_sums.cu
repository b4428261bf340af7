#include "cuda/block_sum.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

struct ScaledSums {
  const float* sums = nullptr;
  const float* bias = nullptr;
  const float* norm = nullptr;
  float epsilon = 0.0f;
  float factor = 1.0f;
  int32_t width = 0;
  float* hidden = nullptr;
};

/// Grid: [rows].
__global__ void __launch_bounds__(kRowBlockThreads) add_scaled_sums_kernel(ScaledSums given) {
  const float* const sums = given.sums + static_cast<size_t>(blockIdx.x) * given.width;
  float* const hidden = given.hidden + static_cast<size_t>(blockIdx.x) * given.width;
  const auto value = [&](int32_t i) { return given.bias == nullptr ? sums[i] : sums[i] + given.bias[i]; };
  float inverse = 1.0f;
  if (given.norm != nullptr) {
    float squares = 0.0f;
    for (int32_t i = threadIdx.x; i < given.width; i += kRowBlockThreads) squares += value(i) * value(i);
    const float total = block_sum(squares, reinterpret_cast<float*>(shared_memory()));
    inverse = 1.0f / sqrtf(total / static_cast<float>(given.width) + given.epsilon);
  }
  for (int32_t i = threadIdx.x; i < given.width; i += kRowBlockThreads) {
    const float normed = given.norm == nullptr ? value(i) : value(i) * inverse * given.norm[i];
    hidden[i] += given.factor * normed;
  }
}

}  // namespace

void add_scaled_sums(cudaStream_t stream, const float* sums, const float* bias, const float* norm, float epsilon,
                     float factor, int32_t rows, int32_t width, float* hidden) {
  launch<add_scaled_sums_kernel>({.name = "add_scaled_sums",
                                  .grid = dim3(rows),
                                  .block = dim3(kRowBlockThreads),
                                  .shared_bytes = kRowBlockWarps * sizeof(float)},
                                 stream,
                                 ScaledSums{.sums = sums,
                                            .bias = bias,
                                            .norm = norm,
                                            .epsilon = epsilon,
                                            .factor = factor,
                                            .width = width,
                                            .hidden = hidden});
}

}  // namespace millrace::cuda
