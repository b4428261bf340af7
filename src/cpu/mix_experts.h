#pragma once

#include "cpu/ops.h"

namespace millrace::cpu {

/// The experts of a sparse layer, of one shape and one layout.
class CpuExperts final : public tensor::Experts {
 public:
  CpuExperts(std::vector<tensor::ExpertWeights> weights, const tensor::Routing& routing);
  [[nodiscard]] int32_t count() const override { return static_cast<int32_t>(weights_.size()); }
  [[nodiscard]] const tensor::Routing& routing() const override { return routing_; }
  [[nodiscard]] const CpuPackedWeight& gate_up(int32_t expert) const {
    return static_cast<const CpuPackedWeight&>(*weights_[static_cast<size_t>(expert)].gate_up);
  }
  [[nodiscard]] const CpuPackedWeight& down(int32_t expert) const {
    return static_cast<const CpuPackedWeight&>(*weights_[static_cast<size_t>(expert)].down);
  }

 private:
  std::vector<tensor::ExpertWeights> weights_;
  tensor::Routing routing_;
};

void mix_experts(Device& device, tensor::Matrix x, tensor::Matrix router_logits, const CpuExperts& experts,
                 tensor::Matrix hidden);
/// Takes the scratch of mix_experts with so many rows.
void reserve_experts(Device& device, const CpuExperts& experts, int64_t rows);

}  // namespace millrace::cpu
