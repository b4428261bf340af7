#include "model/layer_balance.h"

#include <algorithm>
#include <limits>

namespace millrace::model {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Relative difference below which costs count as equal, since it is rounding.
constexpr double kSlack = 1e-12;

/// The contiguous divisions of one model, by dynamic programming over (stages, layers) from the front.
class Divisions {
 public:
  Divisions(const PartCosts& costs, int32_t stage_count)
      : costs_(costs), stage_count_(stage_count), sums_(costs.layers.size() + 1, 0.0) {
    for (size_t i = 0; i < costs.layers.size(); ++i) sums_[i + 1] = sums_[i] + costs.layers[i];
  }

  /// Returns the cost of `stage` when it holds `layers`.
  [[nodiscard]] double stage_cost(int32_t stage, LayerRange layers) const {
    double cost = sums_[static_cast<size_t>(layers.end)] - sums_[static_cast<size_t>(layers.begin)];
    if (stage == 0) cost += costs_.embedding;
    if (stage + 1 == stage_count_) cost += costs_.head;
    return cost;
  }

  /// Returns the minimum `total` over all divisions and a division that has it. `add(total of the earlier stages,
  /// stage, its layers)` must be monotonic in its first argument.
  template <class Add>
  [[nodiscard]] std::pair<double, std::vector<LayerRange>> least(const Add& add) const {
    const auto layers = static_cast<int32_t>(costs_.layers.size());
    const auto width = static_cast<size_t>(layers) + 1;
    std::vector<double> total(width, kNever);  // of the stages so far, by the layers that they hold together
    std::vector<std::vector<int32_t>> begins;  // [stage][layers]: where the stage begins
    total[0] = 0;
    for (int32_t stage = 0; stage < stage_count_; ++stage) {
      std::vector<double> next(width, kNever);
      begins.emplace_back(width, 0);
      for (int32_t end = stage + 1; end <= layers - (stage_count_ - stage - 1); ++end) {
        for (int32_t begin = stage; begin < end; ++begin) {
          const double with = add(total[static_cast<size_t>(begin)], stage, LayerRange{begin, end});
          if (with >= next[static_cast<size_t>(end)]) continue;
          next[static_cast<size_t>(end)] = with;
          begins.back()[static_cast<size_t>(end)] = begin;
        }
      }
      total = std::move(next);
    }
    std::vector<LayerRange> ranges(static_cast<size_t>(stage_count_));
    for (int32_t stage = stage_count_, end = layers; stage-- > 0; end = ranges[static_cast<size_t>(stage)].begin)
      ranges[static_cast<size_t>(stage)] = {begins[static_cast<size_t>(stage)][static_cast<size_t>(end)], end};
    return {total.back(), ranges};
  }

 private:
  const PartCosts& costs_;
  const int32_t stage_count_;
  std::vector<double> sums_;  // [layers + 1], of the layers before
};

}  // namespace

PartCosts mixed_costs(const WorkCosts& costs, double steps) {
  const auto mix = [steps](double prefill, double decode) { return prefill + steps * decode; };
  PartCosts mixed{.layers = {},
                  .embedding = mix(costs.prefill.embedding, costs.decode.embedding),
                  .head = mix(costs.prefill.head, costs.decode.head)};
  for (size_t layer = 0; layer < costs.prefill.layers.size(); ++layer) {
    mixed.layers.push_back(mix(costs.prefill.layers[layer], costs.decode.layers[layer]));
  }
  return mixed;
}

std::vector<double> busy_shares(const PartCosts& costs, const std::vector<LayerRange>& ranges) {
  std::vector<double> shares = stage_costs(costs, ranges);
  const double slowest = *std::ranges::max_element(shares);
  for (double& share : shares) share /= slowest;
  return shares;
}

std::vector<double> stage_costs(const PartCosts& costs, const std::vector<LayerRange>& ranges) {
  const Divisions divisions(costs, static_cast<int32_t>(ranges.size()));
  std::vector<double> stages;
  for (const LayerRange& range : ranges)
    stages.push_back(divisions.stage_cost(static_cast<int32_t>(stages.size()), range));
  return stages;
}

Result<std::vector<LayerRange>> balance_layers(const PartCosts& costs, int32_t stage_count, double noise) {
  const auto even = divide_layers(static_cast<int32_t>(costs.layers.size()), stage_count);
  if (even.has_error()) return even.error();
  const Divisions divisions(costs, stage_count);
  const auto slower = [&divisions](double before, int32_t stage, LayerRange layers) {
    return std::max(before, divisions.stage_cost(stage, layers));
  };
  const double limit = divisions.least(slower).first * (1 + std::max(noise, kSlack));
  const auto further = [&](double before, int32_t stage, LayerRange layers) {
    if (divisions.stage_cost(stage, layers) > limit) return kNever;
    const double moved = layers.size() - (*even)[static_cast<size_t>(stage)].size();
    return before + moved * moved;
  };
  return divisions.least(further).second;
}

}  // namespace millrace::model
