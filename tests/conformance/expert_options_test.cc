// Routers and experts of the families of today: how a row chooses its experts, weighs them, and what an expert is.

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "conformance/random_experts.h"

using namespace millrace;
using namespace millrace::test;
using tensor::Feature;
using tensor::GroupScore;
using tensor::RouterScore;
using tensor::Routing;

namespace {

/// Clamped features reach 1.5 · 2.5, biases included; routed weights are scaled by up to 2.5.
constexpr float kScaledFeatureError = 1e-4f;

/// Returns the experts with weights that rows of the logits give, by what each expert adds to a row.
class RoutedWeights {
 public:
  RoutedWeights(tensor::Backend& backend, int32_t experts, const Routing& routing)
      : experts_(experts),
        random_(1),
        mixture_(random_, backend, {.hidden = experts, .inner = 1, .experts = experts, .routing = routing},
                 ExpertFormat::kCompute, tensor::DType::kF32) {}

  /// Returns whether the op's result for these logits is the sum of exactly these experts with these weights.
  [[nodiscard]] bool matches(const Values& logits, const std::vector<std::pair<size_t, double>>& wanted) {
    const Values x(static_cast<size_t>(experts_), 0.5f);
    const Values got = mixture_.mix(x, logits, Values(x.size(), 0.0f));
    std::vector<double> sums(x.size(), 0.0);
    for (const auto& [expert, weight] : wanted) {
      const reference::Expert& own = mixture_.values[expert];
      const auto feature = [&](const Values& matrix) { return reference::matmul(x, matrix, {}, experts_, 1); };
      const Values activated = mixture_.round(reference::activate({}, feature(own.gate), feature(own.up)), 1);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += weight * double{activated[0]} * double{own.down[i]};
    }
    double largest = 0.0;
    double difference = 0.0;
    for (size_t i = 0; i < sums.size(); ++i) {
      largest = std::max(largest, std::abs(sums[i]));
      difference = std::max(difference, std::abs(sums[i] - double{got[i]}));
    }
    return difference <= 0.01 * largest;  // the activated feature may round to the other neighbour
  }

 private:
  const int32_t experts_;
  Random random_;
  const RandomExperts mixture_;
};

}  // namespace

TEST_CASE("routers and experts of any options agree") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 70);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (int i = 0; i < 5; ++i) {
      const ExpertSizes sizes = random_sizes(random, *backend);
      for (const ExpertFormat format : expert_formats_of(*backend)) {
        const int64_t rows = random.integer(1, 40);
        INFO(shown(backend_case, sizes, format, rows));
        const RandomExperts experts(random, *backend, sizes, format, backend_case.w8_dtype());
        experts.check(random, rows, kScaledFeatureError);
      }
    }
  }
}

TEST_CASE("a correction bias moves the choice and no weight") {
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(Feature::kRouting)) continue;
    INFO(backend_case.name);
    const Values logits{2.0f, 1.0f, 0.0f, -1.0f};
    const auto sigmoid = [&](size_t expert) { return 1.0 / (1.0 + std::exp(-double{logits[expert]})); };
    Routing routing{.experts_per_row = 2, .score = RouterScore::kSigmoid};
    REQUIRE(RoutedWeights(*backend, 4, routing).matches(logits, {{0, sigmoid(0)}, {1, sigmoid(1)}}));
    routing.choice_bias = {-1.0f, 0.0f, 0.0f, 1.0f};
    REQUIRE(RoutedWeights(*backend, 4, routing).matches(logits, {{1, sigmoid(1)}, {3, sigmoid(3)}}));
    routing.renormalize = true;
    routing.scale = 3.0f;
    const double sum = sigmoid(1) + sigmoid(3);
    REQUIRE(RoutedWeights(*backend, 4, routing)
                .matches(logits, {{1, 3.0 * sigmoid(1) / sum}, {3, 3.0 * sigmoid(3) / sum}}));
    routing.sum_epsilon = 1.0;
    REQUIRE(RoutedWeights(*backend, 4, routing)
                .matches(logits, {{1, 3.0 * sigmoid(1) / (sum + 1.0)}, {3, 3.0 * sigmoid(3) / (sum + 1.0)}}));
    routing.min_sum = 10.0;
    REQUIRE(RoutedWeights(*backend, 4, routing).matches(logits, {{1, 0.3 * sigmoid(1)}, {3, 0.3 * sigmoid(3)}}));
  }
}

TEST_CASE("a scale per expert moves its weight and no choice") {
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(Feature::kExpertNorms)) continue;
    INFO(backend_case.name);
    const Values logits{2.0f, 1.0f, 0.0f, -1.0f};
    Routing routing{.experts_per_row = 2, .renormalize = true, .expert_scales = {0.5f, 3.0f, 100.0f, 100.0f}};
    const double first = 1.0 / (1.0 + std::exp(-1.0));
    REQUIRE(RoutedWeights(*backend, 4, routing).matches(logits, {{0, 0.5 * first}, {1, 3.0 * (1.0 - first)}}));
    routing.scale = 2.0f;
    REQUIRE(RoutedWeights(*backend, 4, routing).matches(logits, {{0, first}, {1, 6.0 * (1.0 - first)}}));
  }
}

TEST_CASE("a row chooses within its best groups") {
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(Feature::kRouting)) continue;
    INFO(backend_case.name);
    // Groups {0, 1}, {2, 3}, {4, 5}. The first has the largest logit, the second the largest sum.
    const Values logits{4.0f, -6.0f, 2.0f, 1.9f, 0.0f, 0.5f};
    Routing routing{.experts_per_row = 2, .renormalize = true, .group_count = 3, .groups_per_row = 1};
    const auto share = [&](size_t expert, size_t other) {
      return 1.0 / (1.0 + std::exp(double{logits[other]} - double{logits[expert]}));
    };
    routing.group_score = GroupScore::kMax;
    REQUIRE(RoutedWeights(*backend, 6, routing).matches(logits, {{0, share(0, 1)}, {1, share(1, 0)}}));
    routing.score = RouterScore::kSigmoid;
    routing.renormalize = false;
    routing.group_score = GroupScore::kSumOfTwo;
    const auto sigmoid = [&](size_t expert) { return 1.0 / (1.0 + std::exp(-double{logits[expert]})); };
    REQUIRE(RoutedWeights(*backend, 6, routing).matches(logits, {{2, sigmoid(2)}, {3, sigmoid(3)}}));
    routing.groups_per_row = 2;
    REQUIRE(RoutedWeights(*backend, 6, routing).matches(logits, {{2, sigmoid(2)}, {3, sigmoid(3)}}));
    routing.groups_per_row = 3;
    REQUIRE(RoutedWeights(*backend, 6, routing).matches(logits, {{0, sigmoid(0)}, {2, sigmoid(2)}}));
    // The lower of equal groups is chosen, and its lower experts.
    const Values equal(6, 1.0f);
    routing.groups_per_row = 1;
    const double same = 1.0 / (1.0 + std::exp(-1.0));
    REQUIRE(RoutedWeights(*backend, 6, routing).matches(equal, {{0, same}, {1, same}}));
  }
}

TEST_CASE("rows choose among hundreds of experts in groups") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 72);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(Feature::kRouting)) continue;
    INFO(backend_case.name);
    for (const auto& [experts, groups] :
         {std::pair(256, 8), std::pair(160, 8), std::pair(144, 1), std::pair(129, 43)}) {
      for (const GroupScore group_score : {GroupScore::kMax, GroupScore::kSumOfTwo}) {
        Routing routing{.experts_per_row = 6,
                        .renormalize = true,
                        .score = groups > 10 ? RouterScore::kSoftmax : RouterScore::kSigmoid,
                        .scale = 2.5f,
                        .sum_epsilon = 1e-20,
                        .group_count = groups,
                        .groups_per_row = (groups + 1) / 2,
                        .group_score = group_score};
        if (group_score == GroupScore::kSumOfTwo) routing.choice_bias = random.normal(experts, 0.1f);
        RoutedWeights weights(*backend, experts, routing);
        for (int row = 0; row < 3; ++row) {
          const Values logits = random.normal(experts, 2.0f);
          INFO(experts << " experts in " << groups << " groups, row " << row);
          REQUIRE(weights.matches(logits, reference::route(logits, routing)));
        }
      }
    }
  }
}

TEST_CASE("sigmoid scores of extreme logits are finite") {
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(Feature::kRouting)) continue;
    INFO(backend_case.name);
    const Routing routing{.experts_per_row = 2, .renormalize = true, .score = RouterScore::kSigmoid};
    RoutedWeights weights(*backend, 4, routing);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    REQUIRE(weights.matches({kInfinity, -200.0f, 300.0f, -kInfinity}, {{0, 0.5}, {2, 0.5}}));
    REQUIRE(weights.matches({-60.0f, -60.0f, -90.0f, -kInfinity}, {{0, 0.5}, {1, 0.5}}));
  }
}

TEST_CASE("a row with a NaN logit spoils no other with a bias") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 71);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(Feature::kRouting)) continue;
    for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
      ExpertSizes sizes{.hidden = 20, .inner = 12, .experts = 8, .routing = {.experts_per_row = 3, .score = score}};
      sizes.routing.choice_bias = random.normal(8);
      sizes.routing.group_count = 4;
      sizes.routing.groups_per_row = 2;
      INFO(shown(backend_case, sizes, ExpertFormat::kCompute, 5));
      const RandomExperts experts(random, *backend, sizes, ExpertFormat::kCompute, backend_case.w8_dtype());
      const auto [x, logits, before] = experts.random_inputs(random, 5);
      const Values wanted = experts.mix(x, logits, before);
      Values bad = logits;
      bad[8 + 5] = std::numeric_limits<float>::quiet_NaN();  // row 1
      const Values got = experts.mix(x, bad, before);
      for (size_t i = 0; i < got.size(); ++i) {
        const bool is_as_wanted = i / 20 == 1 ? std::isnan(got[i]) : got[i] == wanted[i];
        REQUIRE(is_as_wanted);
      }
    }
  }
}
