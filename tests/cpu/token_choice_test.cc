#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "cpu/cpu_backend.h"
#include "cpu/token_choice.h"
#include "support/effort.h"
#include "support/test_seed.h"

using namespace millrace;

namespace {

/// Returns the choice by a sort.
std::vector<int32_t> sorted_choice(const std::vector<float>& scores, size_t count) {
  std::vector<int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto value = [&](int32_t id) {
    const float score = scores[static_cast<size_t>(id)];
    return std::isnan(score) ? std::numeric_limits<float>::infinity() : score;
  };
  std::ranges::stable_sort(ids, [&](int32_t left, int32_t right) { return value(left) > value(right); });
  ids.resize(count);
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

TEST_CASE("the largest scores of a row are chosen as a sort chooses") {
  INFO("seed " << test::test_seed());
  std::mt19937_64 random(test::test_seed() + 70);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {0.0f,      -0.0f,     kInfinity, -kInfinity, std::nanf(""), -std::nanf(""),
                                      1e-42f,    -1e-42f,   1.0f,      -1.0f,      3.4e38f,       -3.4e38f,
                                      1.000001f, 0.999999f, 2.5f,      -2.5f};
  cpu::TokenChoice choice;
  for (uint64_t i = 0; i < test::repetitions(200); ++i) {
    const size_t count = 1 + random() % 300;
    std::vector<float> scores(count + 1 + random() % 5000);
    const uint64_t kind = random() % 3;
    std::normal_distribution<float> normal(kind == 1 ? 100.0f : 0.0f, 1.0f);
    for (float& score : scores) score = kind == 2 ? special[random() % special.size()] : normal(random);
    const std::vector<int32_t> wanted = sorted_choice(scores, count);
    const auto isas = cpu::available_isas();
    std::vector<int32_t> chosen(count, -1);
    choice.choose(*cpu::kernels_for(isas[random() % isas.size()]), scores, chosen);
    REQUIRE(chosen == wanted);
  }
}
