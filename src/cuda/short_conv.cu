#include "cuda/convolution.cuh"

namespace millrace::cuda {
namespace {

/// The convolution of B · x, times C, of inputs [B | C | x].
struct GatedConvolution {
  using Output = uint16_t;
  static __device__ float part(const ConvParams<uint16_t>& p, int32_t row, int32_t index, int32_t channel) {
    return p.in[static_cast<size_t>(row) * p.in_columns + static_cast<size_t>(index) * p.conv.channels + channel];
  }
  static __device__ float input(const ConvParams<uint16_t>& p, int32_t row, int32_t channel) {
    return part(p, row, 0, channel) * part(p, row, 2, channel);
  }
  static __device__ void store(const ConvParams<uint16_t>& p, int32_t row, int32_t channel, float sum) {
    p.out[static_cast<size_t>(row) * p.conv.channels + channel] = float_to_bf16(sum * part(p, row, 1, channel));
  }
};

}  // namespace

void short_conv(cudaStream_t stream, const float* in, const DeviceConvolution& convolution, const DeviceBatch& batch,
                const BatchBounds& bounds, const DeviceKvCache& states, int32_t layer, void* out) {
  run_convolution<GatedConvolution>(stream, "short_conv",
                                    {.in = in,
                                     .in_columns = 3 * convolution.channels,
                                     .conv = convolution,
                                     .batch = batch,
                                     .rows = bounds.rows,
                                     .states = states,
                                     .layer = layer,
                                     .out = static_cast<uint16_t*>(out)},
                                    bounds);
}

}  // namespace millrace::cuda
