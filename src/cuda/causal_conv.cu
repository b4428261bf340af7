#include "cuda/convolution.cuh"

namespace millrace::cuda {
namespace {

struct SiluConvolution {
  using Output = float;
  static __device__ float input(const ConvParams<float>& p, int32_t row, int32_t channel) {
    return p.in[static_cast<size_t>(row) * p.in_columns + channel];
  }
  static __device__ void store(const ConvParams<float>& p, int32_t row, int32_t channel, float sum) {
    p.out[static_cast<size_t>(row) * p.conv.channels + channel] = times_sigmoid(sum, sum);
  }
};

}  // namespace

void causal_conv(cudaStream_t stream, const float* in, int32_t in_columns, const DeviceConvolution& convolution,
                 const DeviceBatch& batch, const BatchBounds& bounds, const DeviceKvCache& states, int32_t layer,
                 float* out) {
  run_convolution<SiluConvolution>(stream, "causal_conv",
                                   {.in = in,
                                    .in_columns = in_columns,
                                    .conv = convolution,
                                    .batch = batch,
                                    .rows = bounds.rows,
                                    .states = states,
                                    .layer = layer,
                                    .out = out},
                                   bounds);
}

}  // namespace millrace::cuda
