#include "cuda/activation.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/mma.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

struct Gelu {
  const float* in;
  uint16_t* out;
  int32_t width;
  __device__ void operator()(size_t row, int32_t column) const {
    constexpr float kInverseRoot2 = 0.70710678118654752f;
    const float x = in[row * width + column];
    out[row * width + column] = float_to_bf16(0.5f * x * (1.0f + erff(x * kInverseRoot2)));
  }
};

struct GeluTanhMul {
  const float* in;
  uint16_t* out;
  int32_t width;
  __device__ void operator()(size_t row, int32_t column) const {
    const float* const gate = in + 2 * row * width + column;
    out[row * width + column] = float_to_bf16(gelu_tanh(gate[0]) * gate[width]);
  }
};

struct GeluTanhGate {
  const float* gates;
  const float* factors;
  uint16_t* out;
  int32_t width;
  int32_t factor_stride;
  __device__ void operator()(size_t row, int32_t column) const {
    const size_t at = row * width + column;
    out[at] = float_to_bf16(gelu_tanh(gates[at]) * factors[row * factor_stride + column]);
  }
};

}  // namespace

void gelu(cudaStream_t stream, const float* in, int32_t rows, int32_t width, void* out) {
  launch_elements("gelu", stream, rows, width, Gelu{in, static_cast<uint16_t*>(out), width});
}

void gelu_tanh_mul(cudaStream_t stream, const float* in, int32_t rows, int32_t width, void* out) {
  launch_elements("gelu_tanh_mul", stream, rows, width, GeluTanhMul{in, static_cast<uint16_t*>(out), width});
}

void gelu_tanh_gate(cudaStream_t stream, const float* gates, const float* factors, int32_t factor_stride, int32_t rows,
                    int32_t width, void* out) {
  launch_elements("gelu_tanh_gate", stream, rows, width,
                  GeluTanhGate{gates, factors, static_cast<uint16_t*>(out), width, factor_stride});
}

}  // namespace millrace::cuda
