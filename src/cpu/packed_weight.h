#pragma once

#include <span>

#include "cpu/device.h"
#include "tensor/backend.h"

namespace millrace::cpu {

/// Panels of 64 output features: [panels][steps][64][depth], in the compute dtype, zero where N or K ends inside.
/// A gate-up weight holds 32 gate features and the 32 up features that go with them in each panel.
class CpuPackedWeight final : public tensor::PackedWeight {
 public:
  CpuPackedWeight(int64_t out_features, int64_t in_features, int64_t steps, bool gate_up);
  [[nodiscard]] int64_t out_features() const override { return out_features_; }
  [[nodiscard]] int64_t in_features() const override { return in_features_; }
  [[nodiscard]] bool gate_up() const { return gate_up_; }
  [[nodiscard]] int64_t steps() const { return steps_; }
  [[nodiscard]] int64_t panel_count() const { return panel_count_; }
  /// Output features per panel: 64, or 32 of a gate-up weight.
  [[nodiscard]] int64_t panel_features() const { return gate_up_ ? kPanelColumns / 2 : kPanelColumns; }
  [[nodiscard]] std::byte* panel(int64_t index) const {
    return buffer_.data() + static_cast<size_t>(index) * panel_bytes_;
  }

 private:
  int64_t out_features_;
  int64_t in_features_;
  bool gate_up_;
  int64_t steps_;
  int64_t panel_count_;
  size_t panel_bytes_;
  tensor::Buffer buffer_;
};

/// Stacks [out_i, in] parts along `out`.
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_weight(Device& device, std::span<const tensor::HostTensor> parts);
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_gate_up_weight(Device& device, const tensor::HostTensor& gate,
                                                                   const tensor::HostTensor& up);

/// Reads `count` elements of a dense tensor from element `first` as f32; the tensor may be unaligned.
void read_elements(const Kernels& kernels, const tensor::HostTensor& tensor, int64_t first, int64_t count, float* out);

}  // namespace millrace::cpu
