#pragma once

#include <span>
#include <vector>

#include "cpu/device.h"
#include "tensor/backend.h"

namespace millrace::cpu {

/// The content of a panel (see kernels.h). kF32 is f32 where the compute dtype is another. kW8 and kW8A8 have 8-bit
/// groups for LHS rows of the compute dtype or of 8 bits. kW8A8Channel has a scale per column for 8-bit LHS rows with a
/// scale each. kFp8 has groups of E4M3 for LHS rows of the compute dtype. kCodes has groups of 4-bit or 8-bit codes for
/// 8-bit LHS rows.
enum class PanelFormat : uint8_t { kCompute, kF32, kW8, kW8A8, kW8A8Channel, kFp8, kCodes };

/// The part of a panel that sums one shard of the inputs. A shard starts at a whole group of 32 inputs of the model. If
/// its border lies inside a group, the inputs before it are zeros.
struct PanelShard {
  int64_t first_input = 0;  ///< column of the weight and of x
  int64_t inputs = 0;       ///< may be 0
  int64_t skew = 0;         ///< zeros before the first input
  int64_t first_step = 0;
  int64_t steps = 0;
};

/// The layout of a weight's panels.
struct PanelLayout {
  int64_t steps = 0;
  int64_t depth = 1;      ///< summed elements per step
  size_t step_bytes = 0;  ///< average where the scales of 8-bit groups count
  size_t bytes = 0;       ///< per panel; of channel panels whole memory pages, where hardware prefetching ends
  PanelFormat format = PanelFormat::kCompute;
  bool gate_up = false;            ///< a panel holds 32 gate features and the corresponding 32 up features
  std::vector<PanelShard> shards;  ///< 1, 2, 4 or 8, consecutive, whose sums are added in a binary tree
  int group_elements = 0;          ///< that share scales, of kFp8
  CodePanelFormat codes;           ///< of kCodes

  /// Returns the inputs of all steps, zeros between and after the shards included.
  [[nodiscard]] int64_t padded_inputs() const { return steps * depth; }
  /// Returns whether inputs follow each other without zeros between the shards.
  [[nodiscard]] bool is_contiguous() const;
  /// Returns whether LHS rows are quantized to 8 bits in groups of 32 inputs.
  [[nodiscard]] bool has_int8_groups() const { return format == PanelFormat::kW8A8 || format == PanelFormat::kCodes; }
};
/// Assigns steps to the shards of a layout whose depth is set. A shard is padded to a multiple of `unit` inputs, the
/// last one of `last_unit`.
void assign_steps(PanelLayout& layout, std::vector<PanelShard> shards, int64_t unit, int64_t last_unit);
/// Returns the shards of a rank, or one of all `in_features` inputs, without their steps.
[[nodiscard]] std::vector<PanelShard> panel_shards(const tensor::SumShards& shards);
[[nodiscard]] std::vector<PanelShard> whole_panel_shard(int64_t in_features);

[[nodiscard]] PanelLayout panel_layout(const Device& device, std::vector<PanelShard> shards, bool gate_up);
[[nodiscard]] PanelLayout f32_panel_layout(const Device& device, std::vector<PanelShard> shards, bool gate_up);
[[nodiscard]] PanelLayout w8_panel_layout(const Device& device, std::vector<PanelShard> shards, bool gate_up);
[[nodiscard]] PanelLayout w8a8_panel_layout(const Device& device, std::vector<PanelShard> shards, bool gate_up);
[[nodiscard]] PanelLayout w8a8_channel_panel_layout(const Device& device, std::vector<PanelShard> shards, bool gate_up);

/// Panels of 64 output features: [panels][steps][64][depth], zero where N or K ends inside. The scales of channel
/// panels follow, [panels][64] f32. Further output features may have panels of another layout, which rest() holds.
class CpuPackedWeight final : public tensor::PackedWeight {
 public:
  CpuPackedWeight(int64_t out_features, int64_t in_features, const PanelLayout& layout);
  [[nodiscard]] int64_t out_features() const override {
    return out_features_ + (rest_ == nullptr ? 0 : rest_->out_features());
  }
  [[nodiscard]] int64_t in_features() const override { return in_features_; }
  [[nodiscard]] bool has_row_scales() const override { return layout_.format == PanelFormat::kW8A8Channel; }
  /// Returns the output features in panels of this layout.
  [[nodiscard]] int64_t own_features() const { return out_features_; }
  /// Returns the weight of the output features after those, or null. Its GEMMs take the same LHS operand.
  [[nodiscard]] const CpuPackedWeight* rest() const { return rest_.get(); }
  void set_rest(std::unique_ptr<CpuPackedWeight> rest);
  [[nodiscard]] const PanelLayout& layout() const { return layout_; }
  [[nodiscard]] bool gate_up() const { return layout_.gate_up; }
  [[nodiscard]] int64_t steps() const { return layout_.steps; }
  [[nodiscard]] int64_t panel_count() const { return panel_count_; }
  /// Returns the output features per panel: 64, or 32 of a gate-up weight.
  [[nodiscard]] int64_t panel_features() const { return gate_up() ? kPanelColumns / 2 : kPanelColumns; }
  /// Returns a panel's data from `step` on. In panels with groups one begins at `step`.
  [[nodiscard]] std::byte* panel(int64_t index, int64_t step = 0) const {
    return buffer_.data() + static_cast<size_t>(index) * layout_.bytes + static_cast<size_t>(step) * layout_.step_bytes;
  }
  /// Returns the scales [64] of a channel panel.
  [[nodiscard]] float* column_scales(int64_t index) const {
    return reinterpret_cast<float*>(panel(panel_count_)) + index * kPanelColumns;
  }

 private:
  int64_t out_features_;
  int64_t in_features_;
  PanelLayout layout_;
  int64_t panel_count_;
  tensor::Buffer buffer_;
  std::unique_ptr<CpuPackedWeight> rest_;
};

/// Stacks [out_i, in] parts along `out` and packs them.
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_weight(Device& device, std::span<const tensor::HostTensor> parts);
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_gate_up_weight(Device& device, const tensor::HostTensor& gate,
                                                                   const tensor::HostTensor& up);
/// Packs a weight in f32 whatever the compute dtype is.
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_f32_weight(Device& device, const tensor::HostTensor& weight);
/// Packs 8-bit weights without dequantizing them. If one part has a scale per row, all parts must, and inputs are
/// quantized.
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_w8_weight(Device& device, std::span<const tensor::W8Matrix> parts,
                                                              tensor::W8Activations inputs);
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_gate_up_w8_weight(Device& device, const tensor::W8Matrix& gate,
                                                                      const tensor::W8Matrix& up,
                                                                      tensor::W8Activations inputs);

/// Packs weights in E4M3 without decoding them.
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_fp8_weight(Device& device,
                                                               std::span<const tensor::Fp8Matrix> parts);
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_gate_up_fp8_weight(Device& device, const tensor::Fp8Matrix& gate,
                                                                       const tensor::Fp8Matrix& up);

/// Packs weights in codes of 4 or 8 bits without dequantizing them. Neighbouring parts that share a layout share
/// panels.
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_code_weight(Device& device,
                                                                std::span<const tensor::CodeMatrix> parts);
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_gate_up_code_weight(Device& device, const tensor::CodeMatrix& gate,
                                                                        const tensor::CodeMatrix& up);

/// Packs a weight in the shards of tensor::Backend::pack_sharded.
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_sharded_weight(Device& device, const tensor::HostTensor& part,
                                                                   const tensor::SumShards& shards);
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_sharded_w8_weight(Device& device, const tensor::W8Matrix& part,
                                                                      tensor::W8Activations inputs,
                                                                      const tensor::SumShards& shards);
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_sharded_fp8_weight(Device& device, const tensor::Fp8Matrix& part,
                                                                       const tensor::SumShards& shards);
[[nodiscard]] std::unique_ptr<CpuPackedWeight> pack_sharded_code_weight(Device& device, const tensor::CodeMatrix& part,
                                                                        const tensor::SumShards& shards);

/// Reads `count` elements of a dense tensor from element `first` as f32; the tensor may be unaligned.
void read_elements(const Kernels& kernels, const tensor::HostTensor& tensor, int64_t first, int64_t count, float* out);

}  // namespace millrace::cpu
