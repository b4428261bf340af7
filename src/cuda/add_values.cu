#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kValuesPerThread = 4;
constexpr int kValuesPerBlock = kThreads * kValuesPerThread;

__global__ void __launch_bounds__(kThreads) add_values_kernel(const float* values, int64_t count, float* into) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kValuesPerBlock;
  for (int64_t i = begin + threadIdx.x; i < begin + kValuesPerBlock && i < count; i += kThreads) into[i] += values[i];
}

}  // namespace

void add_values(cudaStream_t stream, const float* values, int64_t count, float* into) {
  const int64_t blocks = (count + kValuesPerBlock - 1) / kValuesPerBlock;
  launch<add_values_kernel>({"add_values", dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream, values, count,
                            into);
}

}  // namespace millrace::cuda
