// Weights of 8 bits: what they stand for, and that products with them are products with that.

#include <cmath>
#include <limits>

#include "conformance/harness.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::W8Activations;
using tensor::W8Matrix;
using tensor::W8Storage;

namespace {

struct W8Sizes {
  int64_t rows, in, out;
};

std::vector<W8Sizes> w8_sizes(Random& random) {
  std::vector<W8Sizes> sizes = {{1, 1, 1},     {1, 64, 64},    {7, 33, 65},   {2, 896, 130}, {25, 257, 31},
                                {55, 300, 70}, {130, 300, 70}, {1, 2500, 64}, {40, 1100, 64}};
  for (int i = 0; i < 4; ++i) sizes.push_back({random.integer(1, 40), random.integer(1, 400), random.integer(1, 300)});
  return sizes;
}

/// Returns a matrix whose rows differ in magnitude.
W8Storage random_matrix(Random& random, int64_t rows, int64_t cols,
                        tensor::W8Scaling scaling = tensor::W8Scaling::kPerGroup) {
  Values values = random.normal(rows * cols);
  for (int64_t row = 0; row < rows; ++row) {
    const float factor = std::exp2(static_cast<float>(random.integer(-4, 2)));
    for (int64_t col = 0; col < cols; ++col) values[static_cast<size_t>(row * cols + col)] *= factor;
  }
  return tensor::quantize_w8(HostMatrix(values, DType::kF32, rows, cols).tensor(), scaling);
}

enum class Op { kMatmul, kMatmulAdd, kMatmulSiluMul };

Values run(tensor::Backend& backend, Op op, const tensor::PackedWeight& weight, const Values& x, const Values& before) {
  const auto rows = static_cast<int64_t>(x.size()) / weight.in_features();
  Values result;
  backend.run_and_wait([&] {
    const DeviceMatrix left = make_matrix(backend, backend.compute_dtype(), rows, weight.in_features());
    const DType dtype = op == Op::kMatmulSiluMul ? backend.compute_dtype() : DType::kF32;
    const DeviceMatrix out = make_matrix(backend, dtype, rows, weight.out_features());
    upload(backend, x, left);
    if (op == Op::kMatmulAdd) upload(backend, before, out);
    switch (op) {
      case Op::kMatmul: backend.matmul(left.matrix, weight, nullptr, out.matrix); break;
      case Op::kMatmulAdd: backend.matmul_add(left.matrix, weight, nullptr, out.matrix); break;
      case Op::kMatmulSiluMul: backend.matmul_silu_mul(left.matrix, weight, out.matrix); break;
    }
    result = download(backend, out.matrix);
  });
  return result;
}

}  // namespace

TEST_CASE("a GEMM with 8-bit weights equals one with their real values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 30);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    const auto plain = backend_case.make_plain();
    REQUIRE(backend->packs_w8());
    for (const auto& [rows, in, out] : w8_sizes(random)) {
      const int64_t split = random.integer(0, out - 1);
      const Op op = split % 2 == 0 ? Op::kMatmul : Op::kMatmulAdd;
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out << ", adds " << (op == Op::kMatmulAdd));
      const W8Storage first = random_matrix(random, split, in);
      const W8Storage second = random_matrix(random, out - split, in);
      const std::vector<W8Matrix> parts = {first.view(), second.view()};
      const auto small = backend->pack_w8(parts, W8Activations::kUnquantized);
      REQUIRE(small->out_features() == out);
      REQUIRE(small->in_features() == in);
      Values weights = reference::to_floats(parts[0]);
      const Values rest = reference::to_floats(parts[1]);
      weights.insert(weights.end(), rest.begin(), rest.end());
      weights = reference::rounded(weights, backend_case.w8_dtype());
      const HostMatrix stored(weights, backend_case.product_dtype, out, in);
      const tensor::HostTensor tensor = stored.tensor();
      const Values x = reference::rounded(random.normal(rows * in), backend->compute_dtype());
      const Values before = random.normal(rows * out);
      const Values got = run(*backend, op, *small, x, before);
      if (!backend_case.scales_sums) {
        const bool same = got == run(*plain, op, *plain->pack({&tensor, 1}), x, before);
        REQUIRE(same);
      }
      Values wanted = reference::matmul(x, weights, {}, in, out);
      if (op == Op::kMatmulAdd) {
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
      }
      check_close(got, wanted, unit(DType::kF32), 40.0 * static_cast<double>(in) * 0x1p-24 + 1e-6);
    }
  }
}

TEST_CASE("matmul_silu_mul with 8-bit weights equals its real values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 31);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    const auto plain = backend_case.make_plain();
    for (const auto& [rows, in, out] : w8_sizes(random)) {
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out);
      const W8Storage gate = random_matrix(random, out, in);
      const W8Storage up = random_matrix(random, out, in);
      const auto stored = [&](const W8Storage& storage) {
        return HostMatrix(reference::rounded(reference::to_floats(storage.view()), backend_case.w8_dtype()),
                          backend_case.w8_dtype(), out, in);
      };
      const HostMatrix plain_gate = stored(gate);
      const HostMatrix plain_up = stored(up);
      const Values x = reference::rounded(random.normal(rows * in, 0.5f), backend->compute_dtype());
      const Values got = run(*backend, Op::kMatmulSiluMul,
                             *backend->pack_gate_up_w8(gate.view(), up.view(), W8Activations::kUnquantized), x, {});
      if (backend_case.scales_sums) {
        const Values wanted =
            reference::activate({}, reference::matmul(x, reference::to_floats(plain_gate.tensor()), {}, in, out),
                                reference::matmul(x, reference::to_floats(plain_up.tensor()), {}, in, out));
        check_close(got, wanted, unit(backend->compute_dtype()), 40.0 * static_cast<double>(in) * 0x1p-24 + 1e-6);
        continue;
      }
      const Values wanted =
          run(*plain, Op::kMatmulSiluMul, *plain->pack_gate_up(plain_gate.tensor(), plain_up.tensor()), x, {});
      const bool same = got == reference::rounded(wanted, backend->compute_dtype());
      REQUIRE(same);
    }
  }
}

TEST_CASE("8-bit weights too large for the kernels are refused") {
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    W8Storage storage = tensor::quantize_w8(HostMatrix(Values(64, 3e38f), DType::kF32, 2, 32).tensor());
    storage.name = "layer.weight";
    const W8Matrix matrix = storage.view();
    std::unique_ptr<tensor::PackedWeight> weight;
    try {
      weight = backend->pack_w8({&matrix, 1}, W8Activations::kUnquantized);
    } catch (const std::runtime_error& error) {
      REQUIRE(std::string(error.what()) ==
              "layer.weight: an 8-bit scale is 2.36e+36, wanted at most 2.03e+31 with AMX");
      continue;
    }
    const Values one = run(*backend, Op::kMatmul, *weight, Values(32, 0x1p-20f), {});
    REQUIRE(std::abs(one[1] / (3e38f * 0x1p-15f) - 1.0f) < 0.01f);
  }
}

TEST_CASE("a weight of -128 is refused by the name of its matrix") {
  W8Storage storage = tensor::quantize_w8(HostMatrix(Values(64, 1.0f), DType::kF32, 2, 32).tensor());
  storage.name = "layer.weight";
  storage.values[40] = -128;
  for (const BackendCase& backend_case : backend_cases()) {
    for (const W8Activations inputs : {W8Activations::kUnquantized, W8Activations::kInt8}) {
      INFO(backend_case.name);
      const W8Matrix matrix = storage.view();
      REQUIRE_THROWS_WITH(backend_case.make()->pack_w8({&matrix, 1}, inputs),
                          "layer.weight: a weight is -128, wanted -127 to 127");
    }
  }
}

TEST_CASE("an 8-bit by 8-bit GEMM equals one with the real values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 33);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const auto& [rows, in, out] : w8_sizes(random)) {
      const Op op = random.integer(0, 1) == 0 ? Op::kMatmul : Op::kMatmulAdd;
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out << ", adds " << (op == Op::kMatmulAdd));
      const W8Storage storage = random_matrix(random, out, in);
      const W8Matrix matrix = storage.view();
      const Values x = reference::rounded(random.normal(rows * in), backend->compute_dtype());
      const Values before = random.normal(rows * out);
      const Values got = run(*backend, op, *backend->pack_w8({&matrix, 1}, W8Activations::kInt8), x, before);
      Values wanted = reference::matmul(reference::rounded_to_int8(x, in), reference::to_floats(matrix), {}, in, out);
      if (op == Op::kMatmulAdd) {
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
      }
      // Either side rounds each factor and each sum, of parts that are about 1 in size.
      check_close(got, wanted, unit(DType::kF32), 10.0 * static_cast<double>(in) * 0x1p-24 + 1e-6);
    }
  }
}

TEST_CASE("integers times powers of two give exact 8-bit GEMMs") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 34);
  constexpr int64_t kIn = 200;
  constexpr int64_t kOut = 90;
  constexpr int64_t kRows = 37;
  // Every group holds a 127, so that its scale is the power.
  const auto draw = [&](int64_t rows) {
    Values values;
    for (int64_t i = 0; i < rows * kIn; ++i) {
      const float power = std::exp2(static_cast<float>(i % kIn / tensor::kW8Group % 2));
      const bool is_first = i % kIn % tensor::kW8Group == 0;
      const int64_t whole = is_first ? 127 : random.integer(-127, 127);
      values.push_back(static_cast<float>(random.integer(0, 1) == 0 ? whole : -whole) * power);
    }
    return values;
  };
  const Values x = draw(kRows);
  const Values weights = draw(kOut);
  const Values wanted = reference::matmul(x, weights, {}, kIn, kOut);
  const W8Storage storage = tensor::quantize_w8(HostMatrix(weights, DType::kF32, kOut, kIn).tensor());
  const W8Matrix matrix = storage.view();
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    const auto weight = backend->pack_w8({&matrix, 1}, W8Activations::kInt8);
    const Values all = reference::rounded(x, backend->compute_dtype());
    REQUIRE(all == x);
    REQUIRE(run(*backend, Op::kMatmul, *weight, x, {}) == wanted);
    const Values one(x.end() - kIn, x.end());
    REQUIRE(run(*backend, Op::kMatmul, *weight, one, {}) == Values(wanted.end() - kOut, wanted.end()));
  }
}

TEST_CASE("an input that is not finite makes its row NaN in 8-bit GEMMs") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const BackendCase& backend_case : backend_cases()) {
      INFO(backend_case.name << ", " << bad);
      const auto backend = backend_case.make();
      for (const tensor::W8Scaling scaling : {tensor::W8Scaling::kPerGroup, tensor::W8Scaling::kPerChannel}) {
        const HostMatrix ones(Values(70 * 64, 1.0f), DType::kF32, 70, 64);
        const W8Storage storage = tensor::quantize_w8(ones.tensor(), scaling);
        const W8Matrix matrix = storage.view();
        const auto weight = backend->pack_w8({&matrix, 1}, W8Activations::kInt8);
        for (const size_t rows : {1, 3, 40}) {
          Values x(rows * 64, 1.0f);
          x[rows / 2 * 64 + 40] = bad;
          const Values got = run(*backend, Op::kMatmul, *weight, x, {});
          for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::isnan(got[i]) == (i / 70 == rows / 2));
        }
      }
    }
  }
}

TEST_CASE("per-channel GEMMs have equal bits on every ISA") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 36);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    auto sizes = w8_sizes(random);
    sizes.insert(sizes.end(), {{2, 64, 64}, {3, 70, 64}, {16, 896, 70}, {17, 64, 33}, {33, 4900, 70}, {300, 130, 65}});
    for (const auto& [rows, in, out] : sizes) {
      const int64_t split = random.integer(0, out - 1);
      const Op op = split % 2 == 0 ? Op::kMatmul : Op::kMatmulAdd;
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out << ", adds " << (op == Op::kMatmulAdd));
      W8Storage first = random_matrix(random, split, in, tensor::W8Scaling::kPerChannel);
      // What others write may have it, with scales of another dtype too.
      for (int8_t& value : first.values) value = value == -127 && random.integer(0, 1) == 0 ? int8_t{-128} : value;
      const W8Storage second = random_matrix(random, out - split, in, tensor::W8Scaling::kPerChannel);
      Values scales;
      for (const tensor::BFloat16 scale : second.scales) scales.push_back(scale.to_float() * 1.001f);
      std::vector<W8Matrix> parts = {first.view(), second.view()};
      parts[1].scales = reinterpret_cast<const std::byte*>(scales.data());
      parts[1].scale_dtype = DType::kF32;
      const auto weight = backend->pack_w8(parts, W8Activations::kInt8);
      Values x = random.normal(rows * in);
      if (rows > 2) std::fill_n(x.begin() + in, in, 0.0f);
      x = reference::rounded(x, backend->compute_dtype());
      const Values before = random.normal(rows * out);
      Values wanted;
      const Values left = reference::matmul_int8(x, parts[0]);
      const Values right = reference::matmul_int8(x, parts[1]);
      for (int64_t row = 0; row < rows; ++row) {
        wanted.insert(wanted.end(), left.begin() + row * split, left.begin() + (row + 1) * split);
        wanted.insert(wanted.end(), right.begin() + row * (out - split), right.begin() + (row + 1) * (out - split));
      }
      if (op == Op::kMatmulAdd) {
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
      }
      const bool same = run(*backend, op, *weight, x, before) == wanted;
      REQUIRE(same);
    }
  }
}

TEST_CASE("matmul_silu_mul with channel scales equals its real values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 37);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const auto& [rows, in, out] : w8_sizes(random)) {
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out);
      const W8Storage gate = random_matrix(random, out, in, tensor::W8Scaling::kPerChannel);
      const W8Storage up = random_matrix(random, out, in, tensor::W8Scaling::kPerChannel);
      const auto weight = backend->pack_gate_up_w8(gate.view(), up.view(), W8Activations::kInt8);
      const Values x = reference::rounded(random.normal(rows * in, 0.5f), backend->compute_dtype());
      const Values wanted =
          reference::activate({}, reference::matmul_int8(x, gate.view()), reference::matmul_int8(x, up.view()));
      check_close(run(*backend, Op::kMatmulSiluMul, *weight, x, {}), wanted, unit(backend->compute_dtype()), 1e-6);
    }
  }
}

TEST_CASE("the largest channel sums fit and more inputs are refused") {
  constexpr int64_t kIn = 65536;
  W8Storage storage{.name = "layer.weight", .shape = {2, kIn}, .values = {}, .scales = {}, .per_channel_scales = true};
  storage.values.assign(2 * kIn, -128);
  storage.scales.assign(2, tensor::BFloat16::from_float(1.0f));
  W8Storage longer = storage;
  longer.shape = {1, kIn + 1};
  longer.values.resize(kIn + 1);
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    const W8Matrix matrix = storage.view();
    const auto weight = backend->pack_w8({&matrix, 1}, W8Activations::kInt8);
    for (const int64_t rows : {1, 3, 20}) {
      const Values got = run(*backend, Op::kMatmul, *weight, Values(static_cast<size_t>(rows * kIn), -127.0f), {});
      REQUIRE(got == Values(static_cast<size_t>(rows * 2), 127.0f * 128.0f * kIn));
    }
    const W8Matrix too_long = longer.view();
    REQUIRE_THROWS_WITH(backend->pack_w8({&too_long, 1}, W8Activations::kInt8),
                        "layer.weight: has 65537 inputs with one scale per channel, wanted at most 65536");
  }
}

TEST_CASE("rounding to 8 bits is to the nearest value of each group") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 32);
  // Enough for several threads, and a last group of 5.
  constexpr int64_t kRows = 3300;
  constexpr int64_t kCols = 997;
  const DType dtype = std::array{DType::kF32, DType::kBF16, DType::kF16}[static_cast<size_t>(random.integer(0, 2))];
  const HostMatrix matrix(random.normal(kRows * kCols), dtype, kRows, kCols);
  const W8Storage storage = tensor::quantize_w8(matrix.tensor());
  const Values exact = reference::to_floats(matrix.tensor());
  const Values rounded = reference::to_floats(storage.view());
  size_t wrong = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const size_t row = i / kCols;
    const size_t group = i % kCols / tensor::kW8Group;
    const double scale = storage.scales[row * tensor::w8_groups(kCols) + group].to_float();
    wrong += std::abs(double{exact[i]} - double{rounded[i]}) > scale * 0.50001;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("power-of-two scales follow the maximum and are exact in bf16") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 33);
  constexpr int64_t kRows = 40;
  constexpr int64_t kCols = 97;
  Values weights = random.normal(kRows * kCols);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::ldexp(weights[i], static_cast<int>(i % 7) * 9 - 30);
  const W8Storage storage = tensor::quantize_w8(HostMatrix(weights, DType::kF32, kRows, kCols).tensor(),
                                                tensor::W8Scaling::kPerGroupPowerOfTwo);
  const Values rounded = reference::to_floats(storage.view());
  REQUIRE(reference::rounded(rounded, DType::kBF16) == rounded);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t first = 0; first < kCols; first += tensor::kW8Group) {
      const int64_t group = row * tensor::w8_groups(kCols) + first / tensor::kW8Group;
      const double scale = storage.scales[static_cast<size_t>(group)].to_float();
      double largest = 0.0;
      for (int64_t i = row * kCols + first; i < row * kCols + std::min(first + tensor::kW8Group, kCols); ++i) {
        const auto at = static_cast<size_t>(i);
        largest = std::max(largest, std::abs(double{weights[at]}));
        // What is nearer to 128 than to 127 becomes 127.
        const bool is_cut = std::abs(weights[at]) > 127.5 * scale;
        REQUIRE(std::abs(double{weights[at]} - double{rounded[at]}) <= scale * (is_cut ? 1.0 : 0.5));
      }
      REQUIRE(std::exp2(std::floor(std::log2(scale))) == scale);
      REQUIRE((largest >= 64.0 * scale && largest < 128.0 * scale));
    }
  }
}

TEST_CASE("row quantization rounds to nearest and keeps zero rows") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 38);
  constexpr int64_t kRows = 30;
  constexpr int64_t kCols = 97;
  Values weights = random.normal(kRows * kCols);
  std::fill_n(weights.begin(), kCols, 1e-38f);
  weights[kCols + 50] = std::numeric_limits<float>::infinity();
  const W8Storage storage =
      tensor::quantize_w8(HostMatrix(weights, DType::kF32, kRows, kCols).tensor(), tensor::W8Scaling::kPerChannel);
  REQUIRE(storage.scales.size() == kRows);
  const Values rounded = reference::to_floats(storage.view());
  for (size_t i = 0; i < kCols; ++i) REQUIRE((rounded[i] == 0.0f && std::isnan(rounded[kCols + i])));
  for (size_t i = 2 * kCols; i < rounded.size(); ++i) {
    REQUIRE(std::abs(double{weights[i]} - double{rounded[i]}) <= storage.scales[i / kCols].to_float() * 0.50001);
  }
}

TEST_CASE("groups of zeros and extreme and nonfinite weights quantize") {
  const Values weights = extreme_weights();
  const W8Storage storage = tensor::quantize_w8(HostMatrix(weights, DType::kF32, 1, 160).tensor());
  const Values rounded = reference::to_floats(storage.view());
  for (size_t i = 0; i < 64; ++i) REQUIRE(rounded[i] == 0.0f);
  REQUIRE(std::abs(rounded[64] / 3e38f - 1.0f) < 0.005f);
  REQUIRE(rounded[65] == -rounded[64]);
  for (size_t i = 96; i < 160; ++i) REQUIRE(std::isnan(rounded[i]));
}
