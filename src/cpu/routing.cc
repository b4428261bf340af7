#include "cpu/routing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

constexpr size_t kOrders = 2;  ///< scratch per expert: candidates, groups
constexpr size_t kScores = 3;  ///< scratch per expert: scores, choice values, group scores

/// Routes one row of logits in memory of its own.
struct RowRouter {
  const Kernels& kernels;
  const tensor::Routing& routing;
  int64_t experts;
  int32_t* order;       // [experts]
  int32_t* groups;      // [experts]
  float* scores;        // [experts], times the divisor of the scores
  float* choice;        // [experts]
  float* group_scores;  // [experts]

  void run(const float* logits, int32_t* topk_ids, float* weights) const {
    const auto count = routing.experts_per_row;
    const LogitExtremes extremes = kernels.extremes(logits, experts);
    const bool is_softmax = routing.score == tensor::RouterScore::kSoftmax;
    if (extremes.has_nan || (is_softmax && !std::isfinite(extremes.max))) {
      std::iota(topk_ids, topk_ids + count, 0);
      std::fill_n(weights, count, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    const double divisor = is_softmax ? kernels.exp_sum(logits, extremes.max, 1.0f, 0.0f, experts, scores, nullptr)
                                      : score_by_sigmoid(logits);
    const float* const values = routing.chooses_by_score() ? choice_values(divisor) : logits;
    const int64_t candidates = list_candidates(values);
    sort_first(order, count, candidates, values);
    std::copy_n(order, count, topk_ids);
    weigh(topk_ids, divisor, weights);
  }

 private:
  /// Moves the `count` indices with the largest values to the front. Of equal values the lower index comes first.
  static void sort_first(int32_t* indices, int32_t count, int64_t size, const float* values) {
    std::partial_sort(indices, indices + count, indices + size, [values](int32_t left, int32_t right) {
      return values[left] > values[right] || (values[left] == values[right] && left < right);
    });
  }

  /// Returns the divisor of the scores.
  [[nodiscard]] double score_by_sigmoid(const float* logits) const {
    (void)kernels.exp_sum(logits, 0.0f, -1.0f, 0.0f, experts, scores, nullptr);
    for (int64_t expert = 0; expert < experts; ++expert) scores[expert] = 1.0f / (1.0f + scores[expert]);
    return 1.0;
  }

  [[nodiscard]] const float* choice_values(double divisor) const {
    for (int64_t expert = 0; expert < experts; ++expert)
      choice[expert] = static_cast<float>(double{scores[expert]} / divisor);
    if (!routing.choice_bias.empty()) kernels.add(routing.choice_bias.data(), choice, experts);
    return choice;
  }

  /// Lists the experts that can be chosen, those of the best groups, in `order`. Returns their count.
  [[nodiscard]] int64_t list_candidates(const float* values) const {
    if (routing.group_count == 1) {
      std::iota(order, order + experts, 0);
      return experts;
    }
    const int64_t size = experts / routing.group_count;
    for (int32_t group = 0; group < routing.group_count; ++group)
      group_scores[group] = group_score(values + group * size, size);
    std::iota(groups, groups + routing.group_count, 0);
    sort_first(groups, routing.groups_per_row, routing.group_count, group_scores);
    for (int32_t i = 0; i < routing.groups_per_row; ++i)
      std::iota(order + i * size, order + (i + 1) * size, static_cast<int32_t>(groups[i] * size));
    return routing.groups_per_row * size;
  }

  [[nodiscard]] float group_score(const float* values, int64_t size) const {
    const int64_t best = std::max_element(values, values + size) - values;
    if (routing.group_score == tensor::GroupScore::kMax || size < 2) return values[best];
    float second = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < size; ++i) {
      if (i != best) second = std::max(second, values[i]);
    }
    return values[best] + second;
  }

  void weigh(const int32_t* topk_ids, double divisor, float* weights) const {
    const auto count = routing.experts_per_row;
    if (routing.renormalize) {
      double sum = 0.0;
      for (int32_t i = 0; i < count; ++i) sum += double{scores[topk_ids[i]]};
      divisor = std::max(sum + routing.sum_epsilon * divisor, routing.min_sum * divisor);
    }
    for (int32_t i = 0; i < count; ++i) {
      const double share = double{scores[topk_ids[i]]} / divisor * double{routing.scale};
      const bool has_scales = !routing.expert_scales.empty();
      weights[i] = static_cast<float>(has_scales ? share * double{routing.expert_scales[topk_ids[i]]} : share);
    }
  }
};

/// Numbers the pairs of rows and the experts in `owned`, expert by expert.
void place_rows(int64_t rows, int64_t experts, int32_t per_row, const tensor::TermRange& owned, Routes& routes) {
  const auto is_owned = [&owned](int32_t expert) { return expert >= owned.begin && expert < owned.end; };
  std::vector<int32_t>& counts = routes.group_of;
  counts.assign(static_cast<size_t>(experts), 0);
  for (const int32_t expert : routes.topk_ids) ++counts[static_cast<size_t>(expert)];
  routes.groups.clear();
  int32_t begin = 0;
  for (int32_t expert = 0; expert < experts; ++expert) {
    int32_t& entry = counts[static_cast<size_t>(expert)];
    if (entry == 0 || !is_owned(expert)) continue;
    routes.groups.push_back({expert, begin, 0});
    begin += entry;
    entry = static_cast<int32_t>(routes.groups.size()) - 1;  // from a count to an index
  }
  routes.pair_index.resize(routes.topk_ids.size());
  routes.pair_row.resize(static_cast<size_t>(begin));
  routes.pair_weight.resize(static_cast<size_t>(begin));
  size_t i = 0;
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t rank = 0; rank < per_row; ++rank, ++i) {
      const int32_t expert = routes.topk_ids[i];
      routes.pair_index[i] = -1;
      if (!is_owned(expert)) continue;
      ExpertGroup& group = routes.groups[static_cast<size_t>(routes.group_of[static_cast<size_t>(expert)])];
      const int32_t pair_index = group.begin + group.count++;
      routes.pair_index[i] = pair_index;
      routes.pair_row[static_cast<size_t>(pair_index)] = row;
      routes.pair_weight[static_cast<size_t>(pair_index)] = routes.weights[i];
    }
  }
}

/// Plans the order in which each row's pairs are added. Two neighbouring shards a < b of a row meet in the subtree of
/// 2^w shards, w being the bits of a ^ b. Before b starts, all narrower subtrees are complete. A row without pairs in a
/// shard skips it.
void plan_sums(int64_t rows, const tensor::SumShards& shards, Routes& routes) {
  routes.pair_sum.assign(routes.pair_row.size(), {});
  routes.last_pair.assign(static_cast<size_t>(rows), -1);
  routes.waiting.assign(static_cast<size_t>(rows), 0);  // bit w - 1: a subtree waits for the other half of 2^w shards
  routes.last_shard.assign(static_cast<size_t>(rows), 0);
  uint32_t shard = 0;
  for (const ExpertGroup& group : routes.groups) {
    while (shards.shard(static_cast<int32_t>(shard)).end <= group.expert) ++shard;
    for (int32_t pair = group.begin; pair < group.begin + group.count; ++pair) {
      const auto row = static_cast<size_t>(routes.pair_row[static_cast<size_t>(pair)]);
      PairSum& sum = routes.pair_sum[static_cast<size_t>(pair)];
      const uint32_t differs = shard ^ routes.last_shard[row];
      const bool is_first = routes.last_pair[row] < 0;
      sum.starts = is_first || differs != 0;
      if (!is_first && differs != 0) {
        const uint32_t meets = std::bit_floor(differs);
        const uint32_t complete = routes.waiting[row] & (meets - 1);
        routes.pair_sum[static_cast<size_t>(routes.last_pair[row])].completed =
            static_cast<uint8_t>(std::popcount(complete));
        routes.waiting[row] = static_cast<uint8_t>((routes.waiting[row] & ~complete) | meets);
      }
      sum.level = static_cast<uint8_t>(std::popcount(routes.waiting[row]));
      routes.last_pair[row] = pair;
      routes.last_shard[row] = static_cast<uint8_t>(shard);
    }
  }
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    if (routes.last_pair[row] < 0) continue;
    PairSum& last = routes.pair_sum[static_cast<size_t>(routes.last_pair[row])];
    last.completed = last.level;
    last.ends = true;
  }
}

}  // namespace

void Routes::reserve(int64_t rows, int32_t experts, int32_t experts_per_row, int threads) {
  const auto pairs = static_cast<size_t>(rows * experts_per_row);
  for (auto* indices : {&topk_ids, &pair_index, &pair_row}) indices->reserve(pairs);
  for (auto* floats : {&weights, &pair_weight}) floats->reserve(pairs);
  pair_sum.reserve(pairs);
  last_pair.reserve(static_cast<size_t>(rows));
  for (auto* bytes : {&waiting, &last_shard}) bytes->reserve(static_cast<size_t>(rows));
  group_of.reserve(static_cast<size_t>(experts));
  groups.reserve(static_cast<size_t>(experts));
  order.reserve(kOrders * static_cast<size_t>(experts * threads));
  scores.reserve(kScores * static_cast<size_t>(experts * threads));
}

void route(Device& device, const tensor::Matrix& logits, const tensor::Routing& routing,
           const tensor::SumShards& shards, Routes& routes) {
  const int32_t per_row = routing.experts_per_row;
  const auto experts = static_cast<size_t>(logits.cols);
  const auto pairs = static_cast<size_t>(logits.rows * per_row);
  routes.topk_ids.resize(pairs);
  routes.weights.resize(pairs);
  const auto threads = static_cast<size_t>(device.pool.threads());
  routes.order.resize(threads * kOrders * experts);
  routes.scores.resize(threads * kScores * experts);
  device.for_rows(logits.rows, [&](int64_t begin, int64_t end, int slot) {
    int32_t* const order = routes.order.data() + static_cast<size_t>(slot) * kOrders * experts;
    float* const scores = routes.scores.data() + static_cast<size_t>(slot) * kScores * experts;
    const RowRouter router{.kernels = device.kernels,
                           .routing = routing,
                           .experts = logits.cols,
                           .order = order,
                           .groups = order + experts,
                           .scores = scores,
                           .choice = scores + experts,
                           .group_scores = scores + 2 * experts};
    for (int64_t row = begin; row < end; ++row) {
      router.run(row_of<float>(logits, row), routes.topk_ids.data() + row * per_row,
                 routes.weights.data() + row * per_row);
    }
  });
  place_rows(logits.rows, logits.cols, per_row, shards.owned(), routes);
  plan_sums(logits.rows, shards, routes);
}

}  // namespace millrace::cpu
