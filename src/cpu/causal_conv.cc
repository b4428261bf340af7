#include "cpu/convolution.h"

namespace millrace::cpu {

void causal_conv(Device& device, tensor::Matrix in, const tensor::ConvShape& shape, const CpuVector& weight,
                 const CpuVector* bias, const tensor::BatchLayout& batch, CpuKvCache& states, int32_t layer,
                 tensor::Matrix out) {
  check_matrix("in", in, tensor::DType::kF32, out.rows, std::max(in.cols, shape.channels));
  check_matrix("out", out, tensor::DType::kF32, in.rows, shape.channels);
  check_batch(batch, in.rows, states);
  const Convolution convolution{device, shape, weight, bias, true, batch, states, layer};
  convolution.check();
  convolution.run(
      [&](int32_t row, int64_t first, int64_t, int) -> const float* { return row_of<float>(in, row) + first; },
      [&](int32_t row, int64_t first, const float* results, int64_t count) {
        std::memcpy(row_of<float>(out, row) + first, results, static_cast<size_t>(count) * sizeof(float));
      });
}

}  // namespace millrace::cpu
