#pragma once

#include "cpu/ops.h"

namespace millrace::cpu {

/// The packed weights of one expert.
struct ExpertWeights {
  std::unique_ptr<tensor::PackedWeight> gate_up;  // [intermediate] twice, hidden
  std::unique_ptr<tensor::PackedWeight> down;     // [hidden, intermediate]
};

/// The experts of a sparse layer that a rank owns, all of one shape and one layout.
class CpuExperts final : public tensor::Experts {
 public:
  /// Takes the weights of the experts `shards.owned()`.
  CpuExperts(std::vector<ExpertWeights> weights, const tensor::Routing& routing, const tensor::SumShards& shards);
  [[nodiscard]] int32_t count() const override { return static_cast<int32_t>(shards_.border.back()); }
  [[nodiscard]] const tensor::SumShards& shards() const { return shards_; }
  /// Returns the first of the owned experts.
  [[nodiscard]] int32_t first() const { return static_cast<int32_t>(shards_.owned().begin); }
  [[nodiscard]] const tensor::Routing& routing() const override { return routing_; }
  [[nodiscard]] const CpuPackedWeight& gate_up(int32_t expert) const {
    return static_cast<const CpuPackedWeight&>(*weights_[static_cast<size_t>(expert - first())].gate_up);
  }
  [[nodiscard]] const CpuPackedWeight& down(int32_t expert) const {
    return static_cast<const CpuPackedWeight&>(*weights_[static_cast<size_t>(expert - first())].down);
  }

 private:
  std::vector<ExpertWeights> weights_;
  tensor::Routing routing_;
  tensor::SumShards shards_;
};

/// Packs the experts of a layer for the CPU.
class CpuExpertPacker final : public tensor::ExpertPacker {
 public:
  CpuExpertPacker(Device& device, int32_t count, tensor::Routing routing, tensor::RankPosition position)
      : device_(device), shards_(tensor::expert_shards(count, position)), routing_(routing) {}
  void add(const tensor::HostTensor& gate, const tensor::HostTensor& up, const tensor::HostTensor& down) override;
  void add_w8(const tensor::W8Matrix& gate, const tensor::W8Matrix& up, const tensor::W8Matrix& down,
              tensor::W8Activations inputs) override;
  void add_w4(const tensor::W4Matrix& gate, const tensor::W4Matrix& up, const tensor::W4Matrix& down) override;
  [[nodiscard]] std::unique_ptr<tensor::Experts> finish() override;

 private:
  Device& device_;
  const tensor::SumShards shards_;
  const tensor::Routing routing_;
  std::vector<ExpertWeights> weights_;
};

/// Implements the op of tensor::Backend; `hidden` has the rows of sequences only.
void fused_moe(Device& device, tensor::Matrix x, tensor::Matrix router_logits, const CpuExperts& experts,
               tensor::Matrix hidden);
/// Reserves the scratch of fused_moe for `rows` rows.
void reserve_fused_moe(Device& device, const CpuExperts& experts, int64_t rows);

}  // namespace millrace::cpu
