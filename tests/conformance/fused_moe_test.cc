#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/random_experts.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

namespace {

Values rows_of(const Values& all, int64_t width, const std::vector<int64_t>& rows) {
  Values some;
  for (const int64_t row : rows) some.insert(some.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
  return some;
}

std::vector<int64_t> numbers_to(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

TEST_CASE("fused_moe agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 40);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    std::vector<ExpertSizes> all = {{1, 1, 1, {1, false}}, {64, 32, 8, {2, true}}, {130, 33, 9, {9, false}}};
    for (int i = 0; i < 3; ++i) all.push_back(random_sizes(random));
    for (const ExpertSizes& sizes : all) {
      for (const ExpertFormat format : expert_formats_of(*backend)) {
        const int64_t rows = random.integer(1, 60);
        INFO(shown(backend_case, sizes, format, rows));
        const RandomExperts experts(random, *backend, sizes, format, backend_case.w8_dtype());
        experts.check(random, rows, kFeatureError);
      }
    }
  }
}

TEST_CASE("experts of ranks add up to the same bits for every count") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 45);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    std::vector<ExpertSizes> all_sizes = {
        {96, 40, 8, {3, true}}, {70, 33, 11, {8, false}}, {64, 32, 24, {8, true}}, {24, 16, 8, {1, true}}};
    all_sizes.push_back(random_sizes(random, *backend));
    all_sizes.back().experts = 24;
    all_sizes.back().routing = {.experts_per_row = 5};
    all_sizes.back().gated = true;
    all_sizes.back().has_biases = backend->computes(tensor::Feature::kExpertBiases);
    if (backend->computes(tensor::Feature::kReluSquared)) {
      all_sizes.push_back({64, 40, 24, {5, true}});
      all_sizes.back().gated = false;
    }
    for (const ExpertSizes& sizes : all_sizes) {
      for (const ExpertFormat format : expert_formats_of(*backend)) {
        if (random.integer(0, 2) != 0) continue;  // a third of them per run: drawing the weights takes long
        const int64_t rows = random.integer(1, 60);
        const auto padding = static_cast<int32_t>(random.integer(0, rows - 1));
        INFO(shown(backend_case, sizes, format, rows) << ", " << padding << " without a sequence");
        const uint64_t seed = random.engine()();
        const auto draw = [&](tensor::RankPosition position) {
          Random same(seed);
          return RandomExperts(same, *backend, sizes, format, backend_case.w8_dtype(), position);
        };
        const RandomExperts all = draw({});
        const auto [x, logits, before] = all.random_inputs(random, rows);
        const Values wanted = all.mix(x, logits, before, padding);
        for (const int32_t ranks : {1, 1 << random.integer(1, 3)}) {
          INFO(ranks << " ranks");
          std::vector<Values> sums;
          for (int32_t rank = 0; rank < ranks; ++rank) sums.push_back(draw({rank, ranks}).sums(x, logits, padding));
          for (size_t half = 1; half < sums.size(); half *= 2) {
            for (size_t rank = 0; rank < sums.size(); rank += 2 * half) {
              for (size_t i = 0; i < x.size(); ++i) sums[rank][i] += sums[rank + half][i];
            }
          }
          for (size_t i = 0; i < x.size(); ++i) sums[0][i] += before[i];
          const bool same = sums[0] == wanted;
          REQUIRE(same);
        }
      }
    }
  }
}

TEST_CASE("of equal logits the lower expert is chosen") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 41);
  const ExpertSizes sizes{20, 12, 5, {2, true}};
  const Values x = reference::rounded(random.normal(20), DType::kBF16);
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    const RandomExperts experts(random, *backend, sizes, ExpertFormat::kCompute, backend_case.w8_dtype());
    const Values before(20, 0.0f);
    const float far = -200.0f;  // so far below that its weight is zero
    const Values wanted = experts.mix(x, {far, 1.0f, 1.0f, far, far}, before);
    REQUIRE(experts.mix(x, {0.5f, 1.0f, 1.0f, 1.0f, 1.0f}, before) == wanted);
    REQUIRE(experts.mix(x, {-0.0f, 0.0f, 0.0f, 0.0f, far}, before) != wanted);
    REQUIRE(experts.mix(x, {far, 0.0f, -0.0f, 0.0f, far}, before) == wanted);
  }
}

TEST_CASE("a row alone at an expert has the bits of a dense layer") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 42);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    // The second and third have sums that are divided.
    for (ExpertSizes sizes :
         {ExpertSizes{96, 64, 3, {}}, ExpertSizes{530, 40, 2, {}}, ExpertSizes{24, 520, 2, {}}, random_sizes(random)}) {
      sizes.routing = {1, true};
      for (const ExpertFormat format : expert_formats_of(*backend)) {
        const int64_t rows = random.integer(1, 80);
        INFO(shown(backend_case, sizes, format, rows));
        const RandomExperts experts(random, *backend, sizes, format, backend_case.w8_dtype());
        const auto [x, logits, _] = experts.random_inputs(random, rows);
        const Values before(x.size(), 0.0f);
        const Values got = experts.mix(x, logits, before);
        std::vector<Values> wanted;  // of all rows, by expert
        for (const RandomExperts::Dense& expert : experts.dense) {
          backend->run_and_wait([&] {
            const DType compute = backend->compute_dtype();
            const DeviceMatrix left = make_matrix(*backend, compute, rows, sizes.hidden);
            const DeviceMatrix activated = make_matrix(*backend, compute, rows, sizes.inner);
            const DeviceMatrix out = make_matrix(*backend, DType::kF32, rows, sizes.hidden);
            upload(*backend, x, left);
            backend->matmul_silu_mul(left.matrix, *expert.gate_up, activated.matrix);
            backend->matmul(activated.matrix, *expert.down, nullptr, out.matrix);
            wanted.push_back(download(*backend, out.matrix));
          });
        }
        for (int64_t row = 0; row < rows; ++row) {
          const auto own = logits.begin() + row * sizes.experts;
          const auto expert = static_cast<size_t>(std::max_element(own, own + sizes.experts) - own);
          REQUIRE(rows_of(got, sizes.hidden, {row}) == rows_of(wanted[expert], sizes.hidden, {row}));
        }
      }
    }
  }
}

TEST_CASE("a row of a mixture does not depend on the other rows") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 43);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const ExpertFormat format : expert_formats_of(*backend)) {
      const ExpertSizes sizes = random_sizes(random, *backend);
      const int64_t rows = 70;
      INFO(shown(backend_case, sizes, format, rows));
      const RandomExperts experts(random, *backend, sizes, format, backend_case.w8_dtype());
      const Values x = reference::rounded(random.normal(rows * sizes.hidden), backend->compute_dtype());
      Values logits = random.normal(rows * sizes.experts);
      // Most rows want one expert, whose number of rows then decides how its products are cut.
      for (int64_t row = 0; row < rows - 6; ++row) logits[static_cast<size_t>(row * sizes.experts)] += 5.0f;
      const Values before = random.normal(rows * sizes.hidden);
      const Values whole = experts.mix(x, logits, before);
      std::vector<int64_t> some = numbers_to(rows);
      for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{17}, random.integer(1, rows)}) {
        std::shuffle(some.begin(), some.end(), random.engine());
        const std::vector<int64_t> taken(some.begin(), some.begin() + count);
        const Values got = experts.mix(rows_of(x, sizes.hidden, taken), rows_of(logits, sizes.experts, taken),
                                       rows_of(before, sizes.hidden, taken));
        REQUIRE(got == rows_of(whole, sizes.hidden, taken));
      }
    }
  }
}

TEST_CASE("rows of one expert set are blocked without a trace") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 44);
  const ExpertSizes sizes{70, 40, 6, {2, false}};
  constexpr int64_t kRows = 545;
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const ExpertFormat format : expert_formats_of(*backend)) {
      INFO(shown(backend_case, sizes, format, kRows));
      const RandomExperts experts(random, *backend, sizes, format, backend_case.w8_dtype());
      const Values x = reference::rounded(random.normal(kRows * sizes.hidden), backend->compute_dtype());
      Values logits;
      for (int64_t row = 0; row < kRows; ++row) {
        for (const float logit : {0.0f, 9.0f, 0.0f, 0.0f, 8.5f, 0.0f}) logits.push_back(logit);
      }
      const Values before(x.size(), 0.25f);
      const Values whole = experts.mix(x, logits, before);
      for (const int64_t row : {int64_t{0}, int64_t{127}, int64_t{128}, int64_t{300}, kRows - 1}) {
        const Values alone = experts.mix(rows_of(x, sizes.hidden, {row}), rows_of(logits, sizes.experts, {row}),
                                         rows_of(before, sizes.hidden, {row}));
        REQUIRE(alone == rows_of(whole, sizes.hidden, {row}));
      }
    }
  }
}

TEST_CASE("a row that is not finite spoils no other") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 45);
  const ExpertSizes sizes{48, 40, 6, {3, true}};
  constexpr int64_t kRows = 21;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const ExpertFormat format : expert_formats_of(*backend)) {
      INFO(shown(backend_case, sizes, format, kRows));
      const RandomExperts experts(random, *backend, sizes, format, backend_case.w8_dtype());
      const auto [x, logits, before] = experts.random_inputs(random, kRows);
      const Values wanted = experts.mix(x, logits, before);
      Values bad_x = x;
      Values bad_logits = logits;
      bad_x[0] = kInfinity;                                            // row 0
      bad_x[static_cast<size_t>(3 * sizes.hidden + 2)] = kNan;         // row 3
      bad_logits[static_cast<size_t>(5 * sizes.experts + 4)] = kNan;   // row 5
      bad_logits[static_cast<size_t>(7 * sizes.experts)] = kInfinity;  // row 7
      for (int32_t i = 0; i < sizes.experts; ++i) bad_logits[static_cast<size_t>(20 * sizes.experts + i)] = -kInfinity;
      const Values got = experts.mix(bad_x, bad_logits, before);
      for (const int64_t row : numbers_to(kRows)) {
        const Values own = rows_of(got, sizes.hidden, {row});
        const bool bad = row == 0 || row == 3 || row == 5 || row == 7 || row == 20;
        if (bad) {
          REQUIRE(std::ranges::none_of(own, [](float value) { return std::isfinite(value); }));
        } else {
          REQUIRE(own == rows_of(wanted, sizes.hidden, {row}));
        }
      }
    }
  }
}

TEST_CASE("rows of no sequence stay as they are and change no other") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 46);
  const ExpertSizes sizes{48, 40, 6, {3, true}};
  constexpr int64_t kRows = 16;
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const ExpertFormat format : expert_formats_of(*backend)) {
      const RandomExperts experts(random, *backend, sizes, format, backend_case.w8_dtype());
      const auto [x, logits, before] = experts.random_inputs(random, kRows);
      const Values alone = experts.mix(x, logits, before);
      for (const int64_t owned : {int64_t{0}, int64_t{1}, int64_t{9}, kRows - 1}) {
        INFO(shown(backend_case, sizes, format, kRows) << ", owned " << owned);
        Values some = logits;
        for (int64_t i = owned; i < kRows; ++i) {
          some[static_cast<size_t>(i * sizes.experts)] = i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 100.0f;
        }
        const Values got = experts.mix(x, some, before, static_cast<int32_t>(kRows - owned));
        const std::vector<int64_t> all = numbers_to(kRows);
        const std::vector<int64_t> own(all.begin(), all.begin() + owned);
        const std::vector<int64_t> padding(all.begin() + owned, all.end());
        REQUIRE(rows_of(got, sizes.hidden, own) == rows_of(alone, sizes.hidden, own));
        REQUIRE(rows_of(got, sizes.hidden, padding) == rows_of(before, sizes.hidden, padding));
      }
    }
  }
}

TEST_CASE("no rows are no work") {
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    Random random(1);
    const RandomExperts experts(random, *backend, {8, 8, 2, {1, true}}, ExpertFormat::kCompute,
                                backend_case.w8_dtype());
    REQUIRE(experts.mix({}, {}, {}).empty());
  }
}
