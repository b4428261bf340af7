#pragma once

#include <cstdint>
#include <vector>

#include "tensor/gated_activation.h"

namespace millrace::tensor {

/// How router logits become scores: a softmax over the logits of all experts, or a sigmoid of each.
enum class RouterScore : uint8_t { kSoftmax, kSigmoid };

/// The score of a group of experts: the largest choice value in it, or the sum of the two largest.
enum class GroupScore : uint8_t { kMax, kSumOfTwo };

/// How a row chooses its experts and weighs them.
///
/// Choice: the experts with the largest values of score + choice_bias; of equal values the lower number wins. With
/// groups, only experts of the groups_per_row groups with the largest group scores can be chosen; of equal groups the
/// lower number wins.
///
/// Weight: the score, never the choice value. With `renormalize` it is divided by max(Σ + sum_epsilon, min_sum), Σ
/// being the sum over the chosen. Then it is multiplied by `scale` and by the expert's scale. A softmax over the chosen
/// logits alone is kSoftmax with `renormalize`.
struct Routing {
  int32_t experts_per_row = 0;
  bool renormalize = false;
  RouterScore score = RouterScore::kSoftmax;
  bool weighs_inputs = false;  ///< weights multiply the experts' inputs, not their results
  float scale = 1.0f;
  double sum_epsilon = 0.0;
  double min_sum = 0.0;
  std::vector<float> choice_bias = {};    // [experts]; empty: none
  std::vector<float> expert_scales = {};  // [experts]; empty: 1
  int32_t group_count = 1;                ///< groups of equal size, in the order of experts
  int32_t groups_per_row = 1;             ///< groups_per_row · experts / group_count is at least experts_per_row
  GroupScore group_score = GroupScore::kMax;

  /// Returns whether the choice depends on more than the order of the logits.
  [[nodiscard]] bool chooses_by_score() const {
    return !choice_bias.empty() || (group_count > 1 && group_score == GroupScore::kSumOfTwo);
  }
  /// Returns whether this is a softmax, renormalized or not, without a bias, groups, or further numbers.
  [[nodiscard]] bool is_plain_softmax() const;
  friend bool operator==(const Routing&, const Routing&) = default;
};

/// What the experts of a layer have in common.
struct ExpertOptions {
  Routing routing;
  GatedActivation activation = {};
  bool has_biases = false;  ///< ExpertPacker::add_biases follows each expert
};

}  // namespace millrace::tensor
