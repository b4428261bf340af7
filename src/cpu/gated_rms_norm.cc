#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void gated_rms_norm(Device& device, tensor::Matrix in, tensor::Matrix gates, int64_t first_gate,
                    const tensor::GatedNorm& norm, tensor::Matrix out) {
  check_matrix("in", in, tensor::DType::kF32, out.rows, out.cols);
  check_matrix("gates", gates, tensor::DType::kF32, in.rows, gates.cols);
  check_matrix("out", out, device.compute_dtype, in.rows, in.cols);
  const CpuVector* const weight = norm.weight != nullptr ? &as_cpu(*norm.weight) : nullptr;
  CHECK(first_gate >= 0 && first_gate + in.cols <= gates.cols, "gates [{}, {}) of {}", first_gate, first_gate + in.cols,
        gates.cols);
  CHECK(weight == nullptr || (norm.group > 0 && in.cols % norm.group == 0 &&
                              (weight->size() == norm.group || weight->size() == in.cols)),
        "groups of {} with {} weights for {} columns", norm.group, weight != nullptr ? weight->size() : 0, in.cols);
  CHECK(!norm.sigmoid || (weight != nullptr && !norm.gate_first && norm.gate_factor == 1.0f),
        "a sigmoid gate without a norm before it, or with factor {}", norm.gate_factor);
  constexpr tensor::GatedActivation kSilu{};
  const auto width = static_cast<size_t>(in.cols);
  device.pool.run_ranges(in.rows, [&](int64_t begin, int64_t end, int slot) {
    auto* const values = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(2 * width);
    float* const scaled = values + width;
    for (int64_t row = begin; row < end; ++row) {
      const float* from = row_of<float>(in, row);
      const float* gate = row_of<float>(gates, row) + first_gate;
      if (norm.gate_factor != 1.0f) {
        for (size_t i = 0; i < width; ++i) scaled[i] = norm.gate_factor * gate[i];
        gate = scaled;
      }
      if (norm.gate_first || weight == nullptr) {
        device.kernels.activate(kSilu, gate, from, values, in.cols);
        from = values;
      }
      for (int64_t first = 0; first < in.cols && weight != nullptr; first += norm.group)
        device.kernels.rms_norm(from + first, weight->data() + first % weight->size(), norm.epsilon, values + first,
                                norm.group);
      if (norm.sigmoid)
        device.kernels.gate(values, gate, values, in.cols);
      else if (!norm.gate_first && weight != nullptr)
        device.kernels.activate(kSilu, gate, values, values, in.cols);
      device.store_row(values, row_of<std::byte>(out, row), out.dtype, in.cols);
    }
  });
}

}  // namespace millrace::cpu
