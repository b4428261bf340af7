#include "cpu/fused_moe.h"

#include <algorithm>

#include "base/check.h"
#include "cpu/blocked_gemm.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::Matrix;

/// One run of the op. Each expert's rows are gathered as the LHS of its gate and up GEMM. The activated result becomes
/// the LHS of its down GEMM, whose result is added to the rows. The blocks of all experts' GEMMs share a parallel
/// region.
class FusedMoe {
 public:
  FusedMoe(Device& device, const CpuExperts& experts)
      : device_(device),
        experts_(experts),
        routes_(device.routes),
        x_packer_(device, experts.gate_up(0).layout(), experts.gate_up(0).in_features()),
        activated_packer_(device, experts.down(0).layout(), experts.down(0).in_features()) {}

  void reserve(int64_t rows) {
    const int32_t per_row = experts_.routing().experts_per_row;
    const int64_t pairs = rows * per_row;
    routes_.reserve(rows, experts_.count(), per_row, device_.pool.threads());
    (void)device_.expert_rows.reserve(x_packer_.max_bytes(pairs, experts_.count()) +
                                      activated_packer_.max_bytes(pairs, experts_.count()));
    if (!activated_packer_.has_groups()) (void)activated_values(pairs);
    for (Scratch& scratch : device_.slot_scratch)
      (void)scratch.reserve(std::max({gather_bytes(), activated_packer_.row_bytes(), BlockedGemm::kMaxScratchBytes}));
  }

  void run(const Matrix& x, const Matrix& router_logits, const Matrix& hidden) {
    route(device_, router_logits, experts_.routing(), routes_);
    assign_scratch();
    gather(x);
    if (activated_packer_.has_groups()) {
      activate([this](const ExpertGroup& group, const PanelResult& sums) { pack_activated(group, sums); });
    } else {
      activate_then_pack();
    }
    accumulate_down(hidden);
  }

 private:
  [[nodiscard]] LhsBuffer x_of(const ExpertGroup& group) const { return {lhs_ + group.x_offset, group.count}; }
  [[nodiscard]] LhsBuffer activated_of(const ExpertGroup& group) const {
    return {lhs_ + group.activated_offset, group.count};
  }
  [[nodiscard]] BlockedGemm gate_up(const ExpertGroup& group) const {
    return {device_, x_packer_.view(x_of(group)), group.count, experts_.gate_up(group.expert)};
  }
  [[nodiscard]] BlockedGemm down(const ExpertGroup& group) const {
    return {device_, activated_packer_.view(activated_of(group)), group.count, experts_.down(group.expert)};
  }
  [[nodiscard]] std::byte* scratch_of(int slot, size_t bytes) const {
    return device_.slot_scratch[static_cast<size_t>(slot)].reserve(bytes);
  }

  void assign_scratch() {
    size_t bytes = 0;
    for (ExpertGroup& group : routes_.groups) {
      group.x_offset = bytes;
      bytes += x_packer_.bytes(group.count);
      group.activated_offset = bytes;
      bytes += activated_packer_.bytes(group.count);
    }
    lhs_ = device_.expert_rows.reserve(bytes);
    block_count_ = 0;
    for (ExpertGroup& group : routes_.groups) {
      group.first_block = block_count_;
      block_count_ += gate_up(group).block_count();
    }
  }

  /// Returns the offset of the widened row, which follows the packed row.
  [[nodiscard]] size_t widened_at() const { return (x_packer_.row_bytes() + 63) / 64 * 64; }
  [[nodiscard]] size_t gather_bytes() const {
    return widened_at() + static_cast<size_t>(experts_.gate_up(0).in_features()) * sizeof(float);
  }
  void gather(const Matrix& x) {
    const int32_t per_row = experts_.routing().experts_per_row;
    device_.for_rows(x.rows, [&](int64_t begin, int64_t end, int slot) {
      std::byte* const encoded = scratch_of(slot, gather_bytes());
      auto* const widened = reinterpret_cast<float*>(encoded + widened_at());
      for (int64_t row = begin; row < end; ++row) {
        x_packer_.encode_row(x, row, widened, encoded);
        for (int64_t i = row * per_row; i < (row + 1) * per_row; ++i) {
          const int32_t expert = routes_.topk_ids[static_cast<size_t>(i)];
          const int32_t index = routes_.group_of[static_cast<size_t>(expert)];
          const ExpertGroup& group = routes_.groups[static_cast<size_t>(index)];
          x_packer_.put_row(encoded, x_of(group), routes_.pair_index[static_cast<size_t>(i)] - group.begin);
        }
      }
    });
  }

  /// Passes the sums of all experts' gate and up GEMMs to finish(ExpertGroup, PanelResult).
  template <class Epilogue>
  void activate(const Epilogue& finish) const {
    device_.pool.run_ranges(block_count_, [&](int64_t begin, int64_t end, int slot) {
      std::byte* const scratch = scratch_of(slot, BlockedGemm::kMaxScratchBytes);
      auto group = std::ranges::upper_bound(routes_.groups, begin, {}, &ExpertGroup::first_block) - 1;
      for (int64_t block = begin; block < end; ++group) {
        const BlockedGemm product = gate_up(*group);
        const int64_t stop = std::min(end, group->first_block + product.block_count());
        for (; block < stop; ++block) {
          product.run(block - group->first_block, scratch, [&](const PanelResult& sums) { finish(*group, sums); });
        }
      }
    });
  }
  /// Packs up to 32 features: a group of the down GEMM's LHS row. Sums after the last feature are zero, like the
  /// weights.
  void pack_activated(const ExpertGroup& group, const PanelResult& sums) const {
    constexpr int64_t kFeatures = kPanelColumns / 2;
    static_assert(kFeatures == kW8GroupElements);
    for (int64_t i = 0; i < sums.rows; ++i) {
      float* const c = sums.row(i);
      device_.kernels.silu_mul(c, c + kFeatures, c, sums.features);
      alignas(64) std::byte encoded[LhsPacker::kMaxGroupBytes];
      activated_packer_.encode_group(c, encoded);
      activated_packer_.put_group(encoded, activated_of(group), sums.first_row + i, sums.feature / kFeatures);
    }
  }

  /// Returns the inputs of down as values: [pairs, intermediate] in the compute dtype.
  [[nodiscard]] Matrix activated_values(int64_t pairs) const {
    const int64_t cols = experts_.down(0).in_features();
    const DType dtype = device_.compute_dtype;
    return {.data = device_.expert_values.reserve(static_cast<size_t>(pairs * cols) * tensor::size_of(dtype)),
            .dtype = dtype,
            .rows = pairs,
            .cols = cols};
  }
  /// Activates all rows before it packs the first, since a row's scale depends on the whole row.
  void activate_then_pack() const {
    const Matrix values = activated_values(std::ssize(routes_.pair_row));
    const bool bf16 = values.dtype == DType::kBF16;
    const size_t size = tensor::size_of(values.dtype);
    activate([&](const ExpertGroup& group, const PanelResult& sums) {
      std::byte* const to = row_of<std::byte>(values, group.begin + sums.first_row);
      device_.kernels.silu_mul_rows(sums.c, sums.rows, sums.features, bf16,
                                    to + static_cast<size_t>(sums.feature) * size,
                                    static_cast<size_t>(values.cols) * size);
    });
    device_.for_rows(values.rows, [&](int64_t begin, int64_t end, int slot) {
      std::byte* const encoded = scratch_of(slot, activated_packer_.row_bytes());
      auto group = std::ranges::upper_bound(routes_.groups, begin, {}, &ExpertGroup::begin) - 1;
      for (int64_t pair_index = begin; pair_index < end; ++pair_index) {
        if (pair_index == group->begin + group->count) ++group;
        activated_packer_.encode_row(values, pair_index, nullptr, encoded);
        activated_packer_.put_row(encoded, activated_of(*group), pair_index - group->begin);
      }
    });
  }

  /// Runs the down GEMMs. Each task has panels of its own and visits experts in ascending order. No two threads add to
  /// the same elements, and the order of a row's sum is fixed.
  void accumulate_down(const Matrix& hidden) const {
    int64_t unit = 1;  // panels of the largest block; of a smaller one a multiple
    for (const ExpertGroup& group : routes_.groups) unit = std::max(unit, down(group).panels());
    const int64_t panels = experts_.down(0).panel_count();
    device_.pool.run_ranges((panels + unit - 1) / unit, [&](int64_t begin, int64_t end, int slot) {
      std::byte* const scratch = scratch_of(slot, BlockedGemm::kMaxScratchBytes);
      for (const ExpertGroup& group : routes_.groups) {
        const BlockedGemm product = down(group);
        const int64_t per_unit = unit / product.panels();
        const int64_t last = std::min(end * per_unit, product.panel_blocks());
        for (int64_t first_block = 0; first_block < product.block_count(); first_block += product.panel_blocks()) {
          for (int64_t block = begin * per_unit; block < last; ++block) {
            product.run(first_block + block, scratch, [&](const PanelResult& sums) {
              for (int64_t i = 0; i < sums.rows; ++i) {
                const auto pair_index = static_cast<size_t>(group.begin + sums.first_row + i);
                device_.kernels.add_scaled(sums.row(i), routes_.pair_weight[pair_index],
                                           row_of<float>(hidden, routes_.pair_row[pair_index]) + sums.feature,
                                           sums.features);
              }
            });
          }
        }
      }
    });
  }

  Device& device_;
  const CpuExperts& experts_;
  Routes& routes_;
  const LhsPacker x_packer_;
  const LhsPacker activated_packer_;
  std::byte* lhs_ = nullptr;
  int64_t block_count_ = 0;
};

bool have_same_layout(const CpuPackedWeight& weight, const CpuPackedWeight& first) {
  return weight.out_features() == first.out_features() && weight.in_features() == first.in_features() &&
         weight.layout().format == first.layout().format && weight.gate_up() == first.gate_up();
}

}  // namespace

CpuExperts::CpuExperts(std::vector<ExpertWeights> weights, const tensor::Routing& routing)
    : weights_(std::move(weights)), routing_(routing) {
  CHECK(routing.experts_per_row >= 1 && routing.experts_per_row <= count(), "{} of {} experts per row",
        routing.experts_per_row, count());
  for (int32_t expert = 0; expert < count(); ++expert) {
    CHECK(gate_up(expert).gate_up() && !down(expert).gate_up(), "expert {} has not a gate-up weight and another",
          expert);
    CHECK(down(expert).in_features() == gate_up(expert).out_features(), "expert {} makes {} features of {}", expert,
          gate_up(expert).out_features(), down(expert).in_features());
    CHECK(have_same_layout(gate_up(expert), gate_up(0)) && have_same_layout(down(expert), down(0)),
          "expert {} is not like the first", expert);
  }
}

void CpuExpertPacker::add(const tensor::HostTensor& gate, const tensor::HostTensor& up,
                          const tensor::HostTensor& down) {
  weights_.push_back({pack_gate_up_weight(device_, gate, up), pack_weight(device_, {&down, 1})});
}

void CpuExpertPacker::add_w8(const tensor::W8Matrix& gate, const tensor::W8Matrix& up, const tensor::W8Matrix& down,
                             tensor::W8Activations inputs) {
  weights_.push_back({pack_gate_up_w8_weight(device_, gate, up, inputs), pack_w8_weight(device_, {&down, 1}, inputs)});
}

std::unique_ptr<tensor::Experts> CpuExpertPacker::finish() {
  CHECK(std::ssize(weights_) == count_, "{} experts were added, wanted {}", weights_.size(), count_);
  return std::make_unique<CpuExperts>(std::move(weights_), routing_);
}

void fused_moe(Device& device, Matrix x, Matrix router_logits, const CpuExperts& experts, Matrix hidden) {
  check_matrix("x", x, device.compute_dtype, x.rows, experts.gate_up(0).in_features());
  check_matrix("router_logits", router_logits, DType::kF32, x.rows, experts.count());
  check_matrix("hidden", hidden, DType::kF32, x.rows, experts.down(0).out_features());
  FusedMoe(device, experts).run(x, router_logits, hidden);
}

void reserve_fused_moe(Device& device, const CpuExperts& experts, int64_t rows) {
  FusedMoe(device, experts).reserve(rows);
}

}  // namespace millrace::cpu
