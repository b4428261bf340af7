#include "cuda/activation.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/mma.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

struct ReluSquared {
  const float* in;
  uint16_t* out;
  int32_t width;
  __device__ void operator()(size_t row, int32_t column) const {
    out[row * width + column] = float_to_bf16(relu_squared_of(in[row * width + column]));
  }
};

}  // namespace

void relu_squared(cudaStream_t stream, const float* in, int32_t rows, int32_t width, void* out) {
  launch_elements("relu_squared", stream, rows, width, ReluSquared{in, static_cast<uint16_t*>(out), width});
}

}  // namespace millrace::cuda
