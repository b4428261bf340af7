#include "cuda/activation.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/mma.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

struct ScaledSiluMul {
  const float* in;
  float factor;
  uint16_t* out;
  int32_t width;
  __device__ void operator()(size_t row, int32_t column) const {
    const float* const both = in + 2 * row * width + column;
    const float gate = factor * both[0];
    out[row * width + column] = float_to_bf16(times_sigmoid(gate, gate) * both[width]);
  }
};

}  // namespace

void scaled_silu_mul(cudaStream_t stream, const float* in, float factor, int32_t rows, int32_t width, void* out) {
  launch_elements("scaled_silu_mul", stream, rows, width,
                  ScaledSiluMul{.in = in, .factor = factor, .out = static_cast<uint16_t*>(out), .width = width});
}

}  // namespace millrace::cuda
