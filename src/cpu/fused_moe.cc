#include "cpu/fused_moe.h"

#include <algorithm>

#include "base/check.h"
#include "cpu/blocked_gemm.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::Matrix;

/// One run of the op. Each expert's rows are gathered as the LHS of its gate and up GEMM, or of up alone. The activated
/// result becomes the LHS of its down GEMM, whose result is added to the rows. The blocks of all experts' GEMMs share a
/// parallel region.
class FusedMoe {
 public:
  FusedMoe(Device& device, const CpuExperts& experts)
      : device_(device),
        experts_(experts),
        routes_(device.routes),
        x_packer_(device, experts.gate_up(experts.first()).layout(), experts.gate_up(experts.first()).in_features()),
        activated_packer_(device, experts.down(experts.first()).layout(), experts.down(experts.first()).in_features()) {
  }

  void reserve(int64_t rows) {
    const int32_t per_row = experts_.routing().experts_per_row;
    const int64_t pairs = rows * per_row;
    routes_.reserve(rows, experts_.count(), per_row, device_.pool.threads());
    (void)device_.expert_rows.reserve(x_packer_.max_bytes(pairs, experts_.count()) +
                                      activated_packer_.max_bytes(pairs, experts_.count()));
    if (!activated_packer_.has_groups()) (void)activated_values(pairs);
    const CpuPackedWeight& of_down = experts_.down(experts_.first());
    const int64_t largest = std::max(sum_bytes(rows, BlockedGemm::kMaxPanels),
                                     std::min(kMaxSumBytes, sum_bytes(rows, of_down.panel_count())));
    for (Scratch& sums : device_.slot_sums) (void)sums.reserve(static_cast<size_t>(largest));
    for (Scratch& scratch : device_.slot_scratch)
      (void)scratch.reserve(std::max({gather_bytes(), activated_packer_.row_bytes(), BlockedGemm::kMaxScratchBytes}));
  }

  void run(const Matrix& x, const Matrix& router_logits, const Matrix& hidden) {
    route(device_, router_logits, experts_.routing(), experts_.shards(), routes_);
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
    return widened_at() + static_cast<size_t>(experts_.gate_up(experts_.first()).in_features()) * sizeof(float);
  }
  void gather(const Matrix& x) {
    const int32_t per_row = experts_.routing().experts_per_row;
    device_.for_rows(x.rows, [&](int64_t begin, int64_t end, int slot) {
      std::byte* const encoded = scratch_of(slot, gather_bytes());
      auto* const widened = reinterpret_cast<float*>(encoded + widened_at());
      for (int64_t row = begin; row < end; ++row) {
        x_packer_.encode_row(x, row, widened, encoded);
        for (int64_t i = row * per_row; i < (row + 1) * per_row; ++i) {
          const int32_t pair_index = routes_.pair_index[static_cast<size_t>(i)];
          if (pair_index < 0) continue;
          const int32_t expert = routes_.topk_ids[static_cast<size_t>(i)];
          const int32_t index = routes_.group_of[static_cast<size_t>(expert)];
          const ExpertGroup& group = routes_.groups[static_cast<size_t>(index)];
          x_packer_.put_row(encoded, x_of(group), pair_index - group.begin);
        }
      }
    });
  }

  /// Passes the sums of all experts' gate and up GEMMs, with their biases, to finish(ExpertGroup, PanelResult).
  template <class Epilogue>
  void activate(const Epilogue& finish) const {
    device_.pool.run_ranges(block_count_, [&](int64_t begin, int64_t end, int slot) {
      std::byte* const scratch = scratch_of(slot, BlockedGemm::kMaxScratchBytes);
      auto group = std::ranges::upper_bound(routes_.groups, begin, {}, &ExpertGroup::first_block) - 1;
      for (int64_t block = begin; block < end; ++group) {
        const BlockedGemm product = gate_up(*group);
        const int64_t stop = std::min(end, group->first_block + product.block_count());
        for (; block < stop; ++block) {
          product.run(block - group->first_block, scratch, [&](const PanelResult& sums) {
            weigh_inputs(*group, sums);
            add_gate_up_bias(*group, sums);
            finish(*group, sums);
          });
        }
      }
    });
  }
  void add_gate_up_bias(const ExpertGroup& group, const PanelResult& sums) const {
    const float* const bias = experts_.gate_up_bias(group.expert);
    if (bias == nullptr) return;
    // A panel has as many columns for half as many features.
    for (int64_t i = 0; i < sums.rows; ++i) device_.kernels.add(bias + 2 * sums.feature, sums.row(i), kPanelColumns);
  }
  /// Multiplies the sums by the weights of their rows where these weigh inputs, which GEMMs leave to their results.
  void weigh_inputs(const ExpertGroup& group, const PanelResult& sums) const {
    if (!experts_.routing().weighs_inputs) return;
    for (int64_t i = 0; i < sums.rows; ++i) {
      const float weight = routes_.pair_weight[static_cast<size_t>(group.begin + sums.first_row + i)];
      float* const row = sums.row(i);
      for (int64_t column = 0; column < kPanelColumns; ++column) row[column] *= weight;
    }
  }
  /// Packs a panel's features, in groups of 32 as the LHS row of the down GEMM has them. Sums after the last feature
  /// are zero, like the weights and biases.
  void pack_activated(const ExpertGroup& group, const PanelResult& sums) const {
    constexpr int64_t kFeatures = kPanelColumns / 2;
    static_assert(kFeatures == kW8GroupElements);
    for (int64_t i = 0; i < sums.rows; ++i) {
      float* const c = sums.row(i);
      if (experts_.gated())
        device_.kernels.activate(experts_.activation(), c, c + kFeatures, c, sums.features);
      else
        square_relu(c, c, sums.features);
      alignas(64) std::byte encoded[LhsPacker::kMaxGroupBytes];
      for (int64_t first = 0; first < sums.features; first += kFeatures) {
        activated_packer_.encode_group(c + first, encoded);
        activated_packer_.put_group(encoded, activated_of(group), sums.first_row + i,
                                    (sums.feature + first) / kFeatures);
      }
    }
  }

  /// Stores a panel's activated features, rows `stride` bytes apart.
  void store_activated(const PanelResult& sums, DType dtype, std::byte* to, size_t stride) const {
    if (experts_.gated())
      return device_.kernels.activate_rows(experts_.activation(), sums.c, sums.rows, sums.features,
                                           dtype == DType::kBF16, to, stride);
    for (int64_t i = 0; i < sums.rows; ++i) {
      square_relu(sums.row(i), sums.row(i), sums.features);
      device_.store_row(sums.row(i), to + static_cast<size_t>(i) * stride, dtype, sums.features);
    }
  }

  /// Returns the inputs of down as values: [pairs, intermediate] in the compute dtype.
  [[nodiscard]] Matrix activated_values(int64_t pairs) const {
    const int64_t cols = experts_.down(experts_.first()).in_features();
    const DType dtype = device_.compute_dtype;
    return {.data = device_.expert_values.reserve(static_cast<size_t>(pairs * cols) * tensor::size_of(dtype)),
            .dtype = dtype,
            .rows = pairs,
            .cols = cols};
  }
  /// Activates all rows before it packs the first, since a row's scale depends on the whole row.
  void activate_then_pack() const {
    const Matrix values = activated_values(std::ssize(routes_.pair_row));
    const size_t size = tensor::size_of(values.dtype);
    activate([&](const ExpertGroup& group, const PanelResult& sums) {
      std::byte* const to = row_of<std::byte>(values, group.begin + sums.first_row);
      store_activated(sums, values.dtype, to + static_cast<size_t>(sums.feature) * size,
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
    const int64_t panels = experts_.down(experts_.first()).panel_count();
    const int64_t chunk = std::max<int64_t>(1, kMaxSumBytes / sum_bytes(hidden.rows, unit));
    device_.pool.run_ranges((panels + unit - 1) / unit, [&](int64_t begin, int64_t end, int slot) {
      for (int64_t first = begin; first < end; first += chunk)
        accumulate_units(first, std::min(first + chunk, end), unit, slot, hidden);
    });
  }

  /// Bytes of partial sums up to which a task visits all experts for all of its panels. With more it does so for some
  /// panels after the other.
  static constexpr int64_t kMaxSumBytes = int64_t{1} << 24;
  /// Returns the levels of partial sums that a row may have.
  [[nodiscard]] int levels() const { return std::min(kMaxPairLevels, experts_.routing().experts_per_row); }
  /// Returns the bytes of the partial sums of `rows` rows over `panels` panels.
  [[nodiscard]] int64_t sum_bytes(int64_t rows, int64_t panels) const {
    return levels() * std::max<int64_t>(rows, 1) * panels * kPanelColumns * static_cast<int64_t>(sizeof(float));
  }

  /// Runs the down GEMMs for the panels of some units.
  void accumulate_units(int64_t begin, int64_t end, int64_t unit, int slot, const Matrix& hidden) const {
    const int64_t cols = (end - begin) * unit * kPanelColumns;
    auto* const partial = reinterpret_cast<float*>(device_.slot_sums[static_cast<size_t>(slot)].reserve(
        static_cast<size_t>(sum_bytes(hidden.rows, (end - begin) * unit))));  // [levels, rows, cols]
    std::byte* const scratch = scratch_of(slot, BlockedGemm::kMaxScratchBytes);
    for (const ExpertGroup& group : routes_.groups) {
      const BlockedGemm product = down(group);
      const float* const bias = experts_.down_bias(group.expert);
      const int64_t per_unit = unit / product.panels();
      const int64_t last = std::min(end * per_unit, product.panel_blocks());
      for (int64_t first_block = 0; first_block < product.block_count(); first_block += product.panel_blocks()) {
        for (int64_t block = begin * per_unit; block < last; ++block) {
          product.run(first_block + block, scratch, [&](const PanelResult& sums) {
            float* const columns = partial + sums.feature - begin * unit * kPanelColumns;
            for (int64_t i = 0; i < sums.rows; ++i) {
              if (bias != nullptr) device_.kernels.add(bias + sums.feature, sums.row(i), sums.features);
              add_pair(group.begin + sums.first_row + i, sums, i, columns, cols, hidden);
            }
          });
        }
      }
    }
  }

  /// Adds a pair's result, row `index` of `sums`, to its row's partial sums, whose `columns` are those of the result.
  void add_pair(int64_t pair_index, const PanelResult& sums, int64_t index, float* columns, int64_t cols,
                const Matrix& hidden) const {
    const auto pair = static_cast<size_t>(pair_index);
    const PairSum& plan = routes_.pair_sum[pair];
    const int64_t row = routes_.pair_row[pair];
    const auto at = [&](int level) { return columns + (level * hidden.rows + row) * cols; };
    const float* addends[kMaxPairLevels];
    int count = 0;
    for (; count < plan.completed; ++count) addends[count] = at(plan.level - 1 - count);
    float* out = at(plan.level - plan.completed);
    if (plan.ends) {
      out = row_of<float>(hidden, row) + sums.feature;
      addends[count++] = out;
    }
    const float weight = experts_.routing().weighs_inputs ? 1.0f : routes_.pair_weight[pair];
    device_.kernels.add_expert(sums.row(index), weight, plan.starts ? nullptr : at(plan.level), addends, count,
                               sums.features, out);
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
         weight.layout().format == first.layout().format && weight.gate_up() == first.gate_up() &&
         weight.rest() == nullptr;
}

void check_routing(const tensor::Routing& routing, int32_t experts) {
  CHECK(routing.experts_per_row >= 1 && routing.experts_per_row <= experts, "{} of {} experts per row",
        routing.experts_per_row, experts);
  CHECK(routing.choice_bias.empty() || std::ssize(routing.choice_bias) == experts, "{} choice biases for {} experts",
        routing.choice_bias.size(), experts);
  CHECK(routing.expert_scales.empty() || std::ssize(routing.expert_scales) == experts, "{} scales for {} experts",
        routing.expert_scales.size(), experts);
  const int32_t groups = routing.group_count;
  CHECK(groups >= 1 && experts % groups == 0 && routing.groups_per_row >= 1 && routing.groups_per_row <= groups &&
            routing.groups_per_row * (experts / groups) >= routing.experts_per_row,
        "{} of {} groups of {} experts for {} per row", routing.groups_per_row, groups, experts,
        routing.experts_per_row);
}

}  // namespace

CpuExperts::CpuExperts(std::vector<ExpertWeights> weights, const tensor::ExpertOptions& options,
                       const tensor::SumShards& shards)
    : weights_(std::move(weights)), options_(options), shards_(shards) {
  const tensor::TermRange owned = shards.owned();
  CHECK(std::ssize(weights_) == owned.size() && owned.size() > 0, "{} experts were added, wanted {} of {}",
        weights_.size(), owned.size(), count());
  check_routing(options.routing, count());
  CHECK(options.gated || !options.has_biases, "experts without a gate have biases");
  for (auto expert = static_cast<int32_t>(owned.begin); expert < owned.end; ++expert) {
    CHECK(gate_up(expert).gate_up() == gated() && !down(expert).gate_up(),
          "expert {} has not a gate-up weight and another", expert);
    CHECK(down(expert).in_features() == gate_up(expert).out_features(), "expert {} makes {} features of {}", expert,
          gate_up(expert).out_features(), down(expert).in_features());
    CHECK(have_same_layout(gate_up(expert), gate_up(first())) && have_same_layout(down(expert), down(first())),
          "expert {} is not like the first", expert);
    CHECK(!weights_of(expert).down_bias.empty() == options.has_biases, "expert {} has {} biases", expert,
          options.has_biases ? "no" : "unexpected");
  }
}

void CpuExpertPacker::add(const tensor::HostTensor& gate, const tensor::HostTensor& up,
                          const tensor::HostTensor& down) {
  weights_.push_back(
      {.gate_up = options_.gated ? pack_gate_up_weight(device_, gate, up) : pack_weight(device_, {&up, 1}),
       .down = pack_weight(device_, {&down, 1})});
}

void CpuExpertPacker::add_w8(const tensor::W8Matrix& gate, const tensor::W8Matrix& up, const tensor::W8Matrix& down,
                             tensor::W8Activations inputs) {
  weights_.push_back({.gate_up = options_.gated ? pack_gate_up_w8_weight(device_, gate, up, inputs)
                                                : pack_w8_weight(device_, {&up, 1}, inputs),
                      .down = pack_w8_weight(device_, {&down, 1}, inputs)});
}

void CpuExpertPacker::add_biases(const tensor::ExpertBiases& biases) {
  CHECK(!weights_.empty(), "biases before the first expert");
  ExpertWeights& expert = weights_.back();
  const auto& gate_up = static_cast<const CpuPackedWeight&>(*expert.gate_up);
  CHECK(std::ssize(biases.gate) == gate_up.out_features() && biases.gate.size() == biases.up.size() &&
            std::ssize(biases.down) == expert.down->out_features(),
        "biases of {}, {} and {} for {} features and {}", biases.gate.size(), biases.up.size(), biases.down.size(),
        gate_up.out_features(), expert.down->out_features());
  constexpr size_t kHalf = kPanelColumns / 2;
  expert.gate_up_bias.assign(static_cast<size_t>(gate_up.panel_count()) * kPanelColumns, 0.0f);
  for (size_t i = 0; i < biases.gate.size(); ++i) {
    float* const at = expert.gate_up_bias.data() + i / kHalf * kPanelColumns + i % kHalf;
    at[0] = biases.gate[i];
    at[kHalf] = biases.up[i];
  }
  expert.down_bias.assign(biases.down.begin(), biases.down.end());
}

void CpuExpertPacker::add_codes(const tensor::CodeMatrix& gate, const tensor::CodeMatrix& up,
                                const tensor::CodeMatrix& down) {
  weights_.push_back(
      {options_.gated ? pack_gate_up_code_weight(device_, gate, up) : pack_code_weight(device_, {&up, 1}),
       pack_code_weight(device_, {&down, 1})});
}

void CpuExpertPacker::add_fp8(const tensor::Fp8Matrix& gate, const tensor::Fp8Matrix& up,
                              const tensor::Fp8Matrix& down) {
  weights_.push_back({options_.gated ? pack_gate_up_fp8_weight(device_, gate, up) : pack_fp8_weight(device_, {&up, 1}),
                      pack_fp8_weight(device_, {&down, 1})});
}

std::unique_ptr<tensor::Experts> CpuExpertPacker::finish() {
  return std::make_unique<CpuExperts>(std::move(weights_), options_, shards_);
}

void fused_moe(Device& device, Matrix x, Matrix router_logits, const CpuExperts& experts, Matrix hidden) {
  check_matrix("x", x, device.compute_dtype, x.rows, experts.gate_up(experts.first()).in_features());
  check_matrix("router_logits", router_logits, DType::kF32, x.rows, experts.count());
  check_matrix("hidden", hidden, DType::kF32, x.rows, experts.down(experts.first()).out_features());
  FusedMoe(device, experts).run(x, router_logits, hidden);
}

void reserve_fused_moe(Device& device, const CpuExperts& experts, int64_t rows) {
  FusedMoe(device, experts).reserve(rows);
}

}  // namespace millrace::cpu
