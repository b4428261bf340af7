#pragma once

#include "cpu/ops.h"

namespace millrace::cpu {

/// The packed weights of one expert.
struct ExpertWeights {
  std::unique_ptr<tensor::PackedWeight> gate_up;  // [intermediate] twice, hidden; without a gate once
  std::unique_ptr<tensor::PackedWeight> down;     // [hidden, intermediate]
  std::vector<float> gate_up_bias = {};           // [panels of gate_up, 64] in the order of its features; or empty
  std::vector<float> down_bias = {};              // [hidden], or empty
};

/// The experts of a sparse layer that a rank owns, all of one shape and one layout.
class CpuExperts final : public tensor::Experts {
 public:
  /// Takes the weights of the experts `shards.owned()`.
  CpuExperts(std::vector<ExpertWeights> weights, const tensor::ExpertOptions& options, const tensor::SumShards& shards);
  [[nodiscard]] int32_t count() const override { return static_cast<int32_t>(shards_.border.back()); }
  [[nodiscard]] const tensor::SumShards& shards() const { return shards_; }
  /// Returns the first of the owned experts.
  [[nodiscard]] int32_t first() const { return static_cast<int32_t>(shards_.owned().begin); }
  [[nodiscard]] const tensor::Routing& routing() const override { return options_.routing; }
  [[nodiscard]] const tensor::GatedActivation& activation() const { return options_.activation; }
  [[nodiscard]] const CpuPackedWeight& gate_up(int32_t expert) const {
    return static_cast<const CpuPackedWeight&>(*weights_of(expert).gate_up);
  }
  [[nodiscard]] const CpuPackedWeight& down(int32_t expert) const {
    return static_cast<const CpuPackedWeight&>(*weights_of(expert).down);
  }
  [[nodiscard]] bool gated() const { return options_.gated; }
  [[nodiscard]] bool has_biases() const { return options_.has_biases; }
  /// Returns the biases of an expert's gate and up in the order of panels; null without biases.
  [[nodiscard]] const float* gate_up_bias(int32_t expert) const {
    return has_biases() ? weights_of(expert).gate_up_bias.data() : nullptr;
  }
  /// Returns the biases of an expert's down; null without biases.
  [[nodiscard]] const float* down_bias(int32_t expert) const {
    return has_biases() ? weights_of(expert).down_bias.data() : nullptr;
  }

 private:
  [[nodiscard]] const ExpertWeights& weights_of(int32_t expert) const {
    return weights_[static_cast<size_t>(expert - first())];
  }

  std::vector<ExpertWeights> weights_;
  tensor::ExpertOptions options_;
  tensor::SumShards shards_;
};

/// Packs the experts of a layer for the CPU.
class CpuExpertPacker final : public tensor::ExpertPacker {
 public:
  CpuExpertPacker(Device& device, int32_t count, const tensor::ExpertOptions& options, tensor::RankPosition position)
      : device_(device), shards_(tensor::expert_shards(count, position)), options_(options) {}
  void add(const tensor::HostTensor& gate, const tensor::HostTensor& up, const tensor::HostTensor& down) override;
  void add_w8(const tensor::W8Matrix& gate, const tensor::W8Matrix& up, const tensor::W8Matrix& down,
              tensor::W8Activations inputs) override;
  void add_fp8(const tensor::Fp8Matrix& gate, const tensor::Fp8Matrix& up, const tensor::Fp8Matrix& down) override;
  void add_codes(const tensor::CodeMatrix& gate, const tensor::CodeMatrix& up, const tensor::CodeMatrix& down) override;
  void add_biases(const tensor::ExpertBiases& biases) override;
  [[nodiscard]] std::unique_ptr<tensor::Experts> finish() override;

 private:
  Device& device_;
  const tensor::SumShards shards_;
  const tensor::ExpertOptions options_;
  std::vector<ExpertWeights> weights_;
};

/// Implements the op of tensor::Backend; `hidden` has the rows of sequences only.
void fused_moe(Device& device, tensor::Matrix x, tensor::Matrix router_logits, const CpuExperts& experts,
               tensor::Matrix hidden);
/// Reserves the scratch of fused_moe for `rows` rows.
void reserve_fused_moe(Device& device, const CpuExperts& experts, int64_t rows);

}  // namespace millrace::cpu
