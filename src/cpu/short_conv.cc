#include "cpu/convolution.h"

namespace millrace::cpu {

void short_conv(Device& device, tensor::Matrix in, const tensor::ConvShape& shape, const CpuVector& weight,
                const CpuVector* bias, const tensor::BatchLayout& batch, CpuKvCache& states, int32_t layer,
                tensor::Matrix out) {
  check_matrix("in", in, tensor::DType::kF32, out.rows, 3 * shape.channels);
  check_matrix("out", out, device.compute_dtype, in.rows, shape.channels);
  check_batch(batch, in.rows, states);
  const Convolution convolution{device, shape, weight, bias, false, batch, states, layer};
  convolution.check();
  const auto part = [&](int32_t row, int64_t index, int64_t first) {
    return row_of<float>(in, row) + index * shape.channels + first;
  };
  convolution.run(
      [&](int32_t row, int64_t first, int64_t count, int slot) -> const float* {
        auto* const products = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(
            static_cast<size_t>(kMaxConvWidth * kConvBlock));
        float* const own = products + row % shape.width * kConvBlock;
        device.kernels.multiply(part(row, 0, first), part(row, 2, first), own, count);
        return own;
      },
      [&](int32_t row, int64_t first, float* results, int64_t count) {
        device.kernels.multiply(results, part(row, 1, first), results, count);
        device.store_row(results, row_of<std::byte>(out, row) + static_cast<size_t>(first) * tensor::size_of(out.dtype),
                         out.dtype, count);
      });
}

}  // namespace millrace::cpu
