#include "cuda/elementwise.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

struct Scale {
  float* values;
  int32_t width;
  float factor;
  __device__ void operator()(size_t row, int32_t column) const { values[row * width + column] *= factor; }
};

struct SoftCap {
  float* values;
  int32_t width;
  float cap;
  __device__ void operator()(size_t row, int32_t column) const {
    float& value = values[row * width + column];
    value = cap * tanhf(value / cap);
  }
};

}  // namespace

void scale(cudaStream_t stream, float* values, int32_t rows, int32_t width, float factor) {
  launch_elements("scale", stream, rows, width, Scale{values, width, factor});
}

void soft_cap(cudaStream_t stream, float* values, int32_t rows, int32_t width, float cap) {
  launch_elements("soft_cap", stream, rows, width, SoftCap{values, width, cap});
}

}  // namespace millrace::cuda
