#include "cuda/activation.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/mma.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

struct Gate {
  uint16_t* values;
  const float* gates;
  int32_t width;
  __device__ void operator()(size_t row, int32_t column) const {
    uint16_t& value = values[row * width + column];
    value = float_to_bf16(times_sigmoid(bf16_to_float(value), gates[row * width + column]));
  }
};

struct AddGatedSums {
  const float* sums;
  const float* gates;
  float* hidden;
  int32_t width;
  __device__ void operator()(size_t row, int32_t column) const {
    hidden[row * width + column] += times_sigmoid(sums[row * width + column], gates[row]);
  }
};

}  // namespace

void gate(cudaStream_t stream, void* values, const float* gates, int32_t rows, int32_t width) {
  launch_elements("gate", stream, rows, width, Gate{static_cast<uint16_t*>(values), gates, width});
}

void add_gated_sums(cudaStream_t stream, const float* sums, const float* gates, int32_t rows, int32_t width,
                    float* hidden) {
  launch_elements("add_gated_sums", stream, rows, width,
                  AddGatedSums{.sums = sums, .gates = gates, .hidden = hidden, .width = width});
}

}  // namespace millrace::cuda
