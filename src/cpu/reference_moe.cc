#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "cpu/reference.h"

namespace millrace::reference {
namespace {

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

/// Returns the scores of all experts.
std::vector<double> router_scores(std::span<const float> logits, tensor::RouterScore kind) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (kind == tensor::RouterScore::kSigmoid) {
    std::ranges::transform(scores, scores.begin(), sigmoid);
    return scores;
  }
  const double largest = *std::ranges::max_element(scores);
  for (double& score : scores) score = std::exp(score - largest);
  const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
  for (double& score : scores) score /= all;
  return scores;
}

/// Returns the indices of the `count` largest values, by descending value; of equal values the lower index comes first.
std::vector<size_t> largest_of(const std::vector<double>& values, int32_t count) {
  std::vector<size_t> indices(values.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  std::ranges::sort(indices, [&](size_t left, size_t right) {
    return values[left] != values[right] ? values[left] > values[right] : left < right;
  });
  indices.resize(static_cast<size_t>(count));
  return indices;
}

/// Replaces the choice values of experts in other groups than the best ones by minus infinity.
void exclude_groups(const tensor::Routing& routing, std::vector<double>& choice) {
  const auto groups = static_cast<size_t>(routing.group_count);
  const size_t size = choice.size() / groups;
  std::vector<double> group_scores;
  for (size_t group = 0; group < groups; ++group) {
    std::vector<double> own(choice.begin() + static_cast<std::ptrdiff_t>(group * size),
                            choice.begin() + static_cast<std::ptrdiff_t>((group + 1) * size));
    std::ranges::sort(own, std::greater());
    const bool sums_two = routing.group_score == tensor::GroupScore::kSumOfTwo && size > 1;
    group_scores.push_back(sums_two ? own[0] + own[1] : own[0]);
  }
  const std::vector<size_t> kept = largest_of(group_scores, routing.groups_per_row);
  for (size_t expert = 0; expert < choice.size(); ++expert) {
    if (std::ranges::find(kept, expert / size) == kept.end()) choice[expert] = -INFINITY;
  }
}

/// Returns how far, beyond `error`, each value's rounding can move when values are off by up to `error`. A value that
/// is the largest of its `group` may be the scale of the others, and is off independently of them.
Values rounding_jumps(const Values& values, const RoundFn& round, float error, size_t group) {
  const auto width = static_cast<int64_t>(values.size());
  const Values rounded = round(values, width);
  Values jumps(values.size(), 0.0f);
  for (const auto& [shift, largest_shift] :
       {std::pair(-error, -error), std::pair(-error, error), std::pair(error, -error), std::pair(error, error)}) {
    Values shifted = values;
    for (float& value : shifted) value += shift;
    for (size_t begin = 0; begin < values.size(); begin += group) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = values.begin() + static_cast<std::ptrdiff_t>(std::min(begin + group, values.size()));
      const auto largest = std::max_element(first, last, [](float a, float b) { return std::abs(a) < std::abs(b); });
      shifted[static_cast<size_t>(largest - values.begin())] = *largest + largest_shift;
    }
    const Values other = round(shifted, width);
    for (size_t i = 0; i < jumps.size(); ++i) {
      jumps[i] = std::max(jumps[i], std::abs(other[i] - rounded[i]));
    }
  }
  return jumps;
}

/// Returns the same for scales of a whole row and of 32 values.
Values rounding_jumps(const Values& values, const RoundFn& round, float error) {
  Values jumps = rounding_jumps(values, round, error, values.size());
  const Values of_groups = rounding_jumps(values, round, error, 32);
  for (size_t i = 0; i < jumps.size(); ++i) jumps[i] = std::max(jumps[i], of_groups[i]);
  return jumps;
}

}  // namespace

Values activate(const tensor::GatedActivation& activation, const Values& gate, const Values& up) {
  const double limit = activation.limit;
  Values out(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    const double u = up[i];
    double value = 0.0;
    switch (activation.function) {
      case tensor::GatedFunction::kSilu: value = g * sigmoid(g) * u; break;
      case tensor::GatedFunction::kGeluTanh:
        value = 0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (g + 0.044715 * g * g * g))) * u;
        break;
      case tensor::GatedFunction::kClampedSwiglu: {
        const double clamped = std::min(g, limit);
        value = (std::clamp(u, -limit, limit) + 1.0) * clamped * sigmoid(double{activation.alpha} * clamped);
        break;
      }
    }
    out[i] = static_cast<float>(value);
  }
  return out;
}

std::vector<std::pair<size_t, double>> route(std::span<const float> logits, const tensor::Routing& routing) {
  const std::vector<double> scores = router_scores(logits, routing.score);
  std::vector<double> choice(logits.begin(), logits.end());
  if (routing.chooses_by_score()) choice = scores;
  for (size_t expert = 0; expert < routing.choice_bias.size(); ++expert)
    choice[expert] += double{routing.choice_bias[expert]};
  if (routing.group_count > 1) exclude_groups(routing, choice);
  std::vector<std::pair<size_t, double>> chosen;
  double sum = 0.0;
  for (const size_t expert : largest_of(choice, routing.experts_per_row)) {
    chosen.emplace_back(expert, scores[expert]);
    sum += scores[expert];
  }
  const double divisor = routing.renormalize ? std::max(sum + routing.sum_epsilon, routing.min_sum) : 1.0;
  for (auto& [expert, weight] : chosen) {
    weight *= double{routing.scale} / divisor;
    if (!routing.expert_scales.empty()) weight *= double{routing.expert_scales[expert]};
  }
  return chosen;
}

FusedMoe fused_moe(const Values& x, const Values& router_logits, std::span<const Expert> experts,
                   const tensor::ExpertOptions& options, const RoundFn& round, float feature_error) {
  const size_t rows = router_logits.size() / experts.size();
  const size_t hidden = x.size() / rows;
  const size_t inner = experts.front().up.size() / hidden;
  const auto product = [](const Values& row, const Values& weight, const Values& bias, size_t in, size_t out) {
    return matmul(row, weight, bias, static_cast<int64_t>(in), static_cast<int64_t>(out));
  };
  FusedMoe mixture;
  for (size_t row = 0; row < rows; ++row) {
    const std::span logits(router_logits.data() + row * experts.size(), experts.size());
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row * hidden);
    const Values own = round({begin, begin + static_cast<std::ptrdiff_t>(hidden)}, static_cast<int64_t>(hidden));
    std::vector<double> sums(hidden, 0.0);
    std::vector<double> jumps(hidden, 0.0);
    for (const auto& [index, weight] : route(logits, options.routing)) {
      const Expert& expert = experts[index];
      const bool weighs_inputs = options.routing.weighs_inputs;
      const double result_weight = weighs_inputs ? 1.0 : weight;
      const auto product_of_input = [&, factor = weight](const Values& matrix, const Values& bias) {
        if (!weighs_inputs) return product(own, matrix, bias, hidden, inner);
        Values out = product(own, matrix, {}, hidden, inner);
        for (size_t i = 0; i < out.size(); ++i)
          out[i] = static_cast<float>(factor * double{out[i]} + (bias.empty() ? 0.0 : double{bias[i]}));
        return out;
      };
      const Values up = product_of_input(expert.up, expert.up_bias);
      const Values gate = options.gated ? product_of_input(expert.gate, expert.gate_bias) : Values();
      const Values activated = options.gated ? activate(options.activation, gate, up) : relu_squared(up);
      const Values result =
          product(round(activated, static_cast<int64_t>(inner)), expert.down, expert.down_bias, inner, hidden);
      Values sizes = expert.down;
      for (float& size : sizes) size = std::abs(size);
      const Values jump = product(rounding_jumps(activated, round, feature_error), sizes, {}, inner, hidden);
      for (size_t i = 0; i < hidden; ++i) {
        sums[i] += result_weight * double{result[i]};
        jumps[i] += result_weight * double{jump[i]};
      }
    }
    mixture.sums.insert(mixture.sums.end(), sums.begin(), sums.end());
    mixture.jumps.insert(mixture.jumps.end(), jumps.begin(), jumps.end());
  }
  return mixture;
}

Values add_gated_sums(const Values& sums, const Values& gates, const Values& hidden) {
  const size_t width = hidden.size() / gates.size();
  Values out(hidden.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(double{hidden[i]} + sigmoid(gates[i / width]) * double{sums[i]});
  return out;
}

}  // namespace millrace::reference
