#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/harness.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::Routing;

namespace {

/// The error of a feature: silu(gate) · up, each a sum of up to 150 terms of about 1 / sqrt(150) in size.
constexpr float kFeatureError = 2e-5f;

enum class ExpertFormat { kCompute, kW8, kW8A8, kW8A8Int8, kW4 };

struct ExpertSizes {
  int64_t hidden = 0;
  int64_t inner = 0;
  int32_t experts = 0;
  Routing routing;
};

std::string shown(const BackendCase& backend_case, const ExpertSizes& sizes, ExpertFormat format, int64_t rows) {
  const char* const names[] = {"plain", "w8", "w8a8", "w8a8_int8", "w4"};
  return fmt::format("{}, {}: {} rows of {}, {} of {} experts of {}, renormalize {}", backend_case.name,
                     names[static_cast<size_t>(format)], rows, sizes.hidden, sizes.routing.experts_per_row,
                     sizes.experts, sizes.inner, sizes.routing.renormalize);
}

ExpertSizes random_sizes(Random& random) {
  ExpertSizes sizes{.hidden = random.integer(1, 150), .inner = random.integer(1, 90)};
  sizes.experts = static_cast<int32_t>(random.integer(1, 11));
  sizes.routing = {static_cast<int32_t>(random.integer(1, sizes.experts)), random.integer(0, 1) != 0};
  return sizes;
}

/// Experts on a backend, with their dequantized weights.
class RandomExperts {
 public:
  /// Draws all experts, of which those of the rank at `position` are packed.
  RandomExperts(Random& random, tensor::Backend& backend, const ExpertSizes& sizes, ExpertFormat format, DType w8_dtype,
                tensor::RankPosition position = {})
      : backend_(backend), sizes_(sizes), format_(format), w8_dtype_(w8_dtype) {
    const auto packer = backend.pack_experts(sizes.experts, sizes.routing, position);
    const tensor::TermRange owned = tensor::expert_shards(sizes.experts, position).owned();
    for (int32_t expert = 0; expert < sizes.experts; ++expert) {
      const HostMatrix gate = matrix(random, sizes.inner, sizes.hidden);
      const HostMatrix up = matrix(random, sizes.inner, sizes.hidden);
      const HostMatrix down = matrix(random, sizes.hidden, sizes.inner);
      if (expert >= owned.begin && expert < owned.end) pack(gate.tensor(), up.tensor(), down.tensor(), *packer);
      values.push_back({stood_for(gate.tensor()), stood_for(up.tensor()), stood_for(down.tensor())});
    }
    packed = packer->finish();
  }

  /// Returns before + the op's result. The last `padding` rows belong to no sequence.
  [[nodiscard]] Values mix(const Values& x, const Values& logits, const Values& before, int32_t padding = 0) const {
    return run(x, logits, before, padding, [&](auto&&... given) { backend_.fused_moe(given...); });
  }
  /// Returns the rank's part of the op's result, whatever the memory held before.
  [[nodiscard]] Values sums(const Values& x, const Values& logits, int32_t padding = 0) const {
    const Values stale(x.size(), 1.0f);
    return run(x, logits, stale, padding, [&](auto&&... given) { backend_.fused_moe_sums(given...); });
  }

  /// The inputs of the op: x, router logits, and the residual before.
  struct Inputs {
    Values x, logits, before;
  };
  [[nodiscard]] Inputs random_inputs(Random& random, int64_t rows) const {
    return {reference::rounded(random.normal(rows * sizes_.hidden), backend_.compute_dtype()),
            random.normal(rows * sizes_.experts), random.normal(rows * sizes_.hidden)};
  }

  /// Returns rows as the reference's GEMMs read them.
  [[nodiscard]] Values round(const Values& rows, int64_t width) const {
    Values rounded = reference::rounded(rows, backend_.compute_dtype());
    if (!rounds_inputs()) return rounded;
    return reference::rounded_to_int8(rounded, width, format_ == ExpertFormat::kW8A8Int8 ? width : tensor::kW8Group);
  }

  [[nodiscard]] bool rounds_inputs() const {
    return format_ == ExpertFormat::kW8A8 || format_ == ExpertFormat::kW8A8Int8 || format_ == ExpertFormat::kW4;
  }

  struct Dense {
    std::unique_ptr<tensor::PackedWeight> gate_up, down;
  };
  std::vector<Dense> dense;  // for the ops of dense layers
  std::vector<reference::Expert> values;
  std::unique_ptr<tensor::Experts> packed;

 private:
  [[nodiscard]] HostMatrix matrix(Random& random, int64_t rows, int64_t cols) const {
    const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
    return {random.normal(rows * cols, deviation), backend_.compute_dtype(), rows, cols};
  }
  /// Packs the next expert, for the op and for the ops of dense layers.
  void pack(const tensor::HostTensor& gate, const tensor::HostTensor& up, const tensor::HostTensor& down,
            tensor::ExpertPacker& packer) {
    if (format_ == ExpertFormat::kCompute) {
      packer.add(gate, up, down);
      dense.push_back({backend_.pack_gate_up(gate, up), backend_.pack({&down, 1})});
      return;
    }
    if (format_ == ExpertFormat::kW4) {
      const tensor::W4Storage small_gate = tensor::quantize_w4(gate);
      const tensor::W4Storage small_up = tensor::quantize_w4(up);
      const tensor::W4Storage small_down = tensor::quantize_w4(down);
      const tensor::W4Matrix view = small_down.view();
      packer.add_w4(small_gate.view(), small_up.view(), view);
      dense.push_back({backend_.pack_gate_up_w4(small_gate.view(), small_up.view()), backend_.pack_w4({&view, 1})});
      return;
    }
    const auto inputs = rounds_inputs() ? tensor::W8Activations::kInt8 : tensor::W8Activations::kUnquantized;
    const tensor::W8Storage small_gate = tensor::quantize_w8(gate, scaling());
    const tensor::W8Storage small_up = tensor::quantize_w8(up, scaling());
    const tensor::W8Storage small_down = tensor::quantize_w8(down, scaling());
    const tensor::W8Matrix view = small_down.view();
    packer.add_w8(small_gate.view(), small_up.view(), view, inputs);
    dense.push_back(
        {backend_.pack_gate_up_w8(small_gate.view(), small_up.view(), inputs), backend_.pack_w8({&view, 1}, inputs)});
  }
  [[nodiscard]] Values stood_for(const tensor::HostTensor& tensor) const {
    if (format_ == ExpertFormat::kCompute) return reference::to_floats(tensor);
    if (format_ == ExpertFormat::kW4) return reference::to_floats(tensor::quantize_w4(tensor).view());
    const Values exact = reference::to_floats(tensor::quantize_w8(tensor, scaling()).view());
    return rounds_inputs() ? exact : reference::rounded(exact, w8_dtype_);
  }
  [[nodiscard]] tensor::W8Scaling scaling() const {
    return format_ == ExpertFormat::kW8A8Int8 ? tensor::W8Scaling::kPerChannel : tensor::W8Scaling::kPerGroup;
  }

  template <class Op>
  [[nodiscard]] Values run(const Values& x, const Values& logits, const Values& before, int32_t padding,
                           const Op& op) const {
    const auto rows = static_cast<int64_t>(logits.size()) / sizes_.experts;
    const std::vector<int32_t> row_begin{0, static_cast<int32_t>(rows) - padding};
    const std::vector<int32_t> zeros(2);
    const tensor::BatchLayout batch{.row_begin = row_begin,
                                    .prefix = std::span(zeros).first(1),
                                    .page_begin = zeros,
                                    .pages = {},
                                    .padded_rows = padding > 0 ? static_cast<int32_t>(rows) : 0,
                                    .padded_sequences = padding > 0 ? static_cast<int32_t>(rows) : 0};
    Values result;
    backend_.run_and_wait([&] {
      const DeviceMatrix left = make_matrix(backend_, backend_.compute_dtype(), rows, sizes_.hidden);
      const DeviceMatrix routed = make_matrix(backend_, DType::kF32, rows, sizes_.experts);
      const DeviceMatrix out = make_matrix(backend_, backend_.hidden_dtype(), rows, sizes_.hidden);
      upload(backend_, x, left);
      upload(backend_, logits, routed);
      upload(backend_, before, out);
      op(left.matrix, routed.matrix, *packed, backend_.upload(batch), out.matrix);
      result = download(backend_, out.matrix);
    });
    return result;
  }

  tensor::Backend& backend_;
  const ExpertSizes sizes_;
  const ExpertFormat format_;
  const DType w8_dtype_;
};

std::vector<ExpertFormat> expert_formats_of(const tensor::Backend& backend) {
  if (!backend.packs_w8()) return {ExpertFormat::kCompute};
  return {ExpertFormat::kCompute, ExpertFormat::kW8, ExpertFormat::kW8A8, ExpertFormat::kW8A8Int8, ExpertFormat::kW4};
}

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
        const auto [x, logits, before] = experts.random_inputs(random, rows);
        const auto [sums, jumps] = reference::fused_moe(
            x, logits, experts.values, sizes.routing, [&](const Values& of, int64_t n) { return experts.round(of, n); },
            kFeatureError);
        Values wanted = sums;
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
        check_close(experts.mix(x, logits, before), wanted, unit(backend->hidden_dtype()) + 1e-5, 2e-5, jumps);
      }
    }
  }
}

TEST_CASE("experts of ranks add up to the same bits for every count") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 45);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (ExpertSizes sizes : {ExpertSizes{96, 40, 8, {3, true}}, ExpertSizes{70, 33, 11, {8, false}},
                              ExpertSizes{64, 32, 24, {8, true}}, ExpertSizes{24, 16, 8, {1, true}}}) {
      for (const ExpertFormat format : expert_formats_of(*backend)) {
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
        for (const int32_t ranks : {1, 2, 4, 8}) {
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
      const ExpertSizes sizes = random_sizes(random);
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
