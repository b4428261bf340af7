// Weights in E4M3: that products with them are products with what they stand for.

#include <array>
#include <cmath>
#include <cstring>

#include "conformance/harness.h"
#include "conformance/multiply.h"
#include "conformance/random_fp8.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::Fp8Matrix;

namespace {

struct Fp8Sizes {
  int64_t rows, in, out;
};

/// Returns some rows for each path of the kernels, with odd shapes.
std::vector<Fp8Sizes> fp8_sizes(Random& random) {
  std::vector<Fp8Sizes> sizes = {{1, 1, 1}, {7, 33, 65}, {2, 896, 70}, {55, 300, 70}, {1, 2500, 64}};
  sizes.push_back({random.integer(1, 40), random.integer(1, 700), random.integer(1, 100)});
  return sizes;
}

constexpr std::array kBlocks = {Fp8Block{128, 128}, Fp8Block{1, 0}, Fp8Block{0, 0}, Fp8Block{16, 64}, Fp8Block{3, 96}};

Fp8Block any_block(Random& random) {
  return kBlocks[static_cast<size_t>(random.integer(0, std::ssize(kBlocks) - 1))];
}

/// Returns a matrix whose rows differ in magnitude.
Fp8Storage random_fp8(Random& random, int64_t rows, int64_t cols, Fp8Block block) {
  Values values = random.normal(rows * cols);
  for (int64_t row = 0; row < rows; ++row) {
    const float factor = std::exp2(static_cast<float>(random.integer(-4, 2)));
    for (int64_t col = 0; col < cols; ++col) values[static_cast<size_t>(row * cols + col)] *= factor;
  }
  return rounded_to_fp8(HostMatrix(values, DType::kF32, rows, cols).tensor(), block);
}

double error_of_fp8_sums(int64_t in) {
  return 80.0 * static_cast<double>(in) * 0x1p-24 + 1e-6;
}

}  // namespace

TEST_CASE("a GEMM with FP8 weights equals one with their real values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 80);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    const auto plain = backend_case.make_plain();
    REQUIRE(backend->packs_fp8());
    for (const auto& [rows, in, out] : fp8_sizes(random)) {
      const Fp8Block block = any_block(random);
      INFO(backend_case.name << ", blocks " << block.rows << " x " << block.cols << ": " << rows << " x " << in << " x "
                             << out);
      // Parts with other blocks are packed together.
      const int64_t split = random.integer(0, out - 1);
      const Fp8Storage first = random_fp8(random, split, in, block);
      const Fp8Storage second = random_fp8(random, out - split, in, {32, 128});
      const std::vector<Fp8Matrix> parts = {first.matrix, second.matrix};
      const auto packed = backend->pack_fp8(parts);
      REQUIRE((packed->out_features() == out && packed->in_features() == in));
      Values weights = tensor::decode(parts[0]);
      const Values rest = tensor::decode(parts[1]);
      weights.insert(weights.end(), rest.begin(), rest.end());
      weights = reference::rounded(weights, backend_case.w8_dtype());
      const Values x = reference::rounded(random.normal(rows * in), backend->compute_dtype());
      const Values got = multiply(*backend, *packed, false, x);
      if (!backend_case.scales_sums) {
        const HostMatrix stored(weights, backend_case.product_dtype, out, in);
        const tensor::HostTensor tensor = stored.tensor();
        const bool same = got == multiply(*plain, *plain->pack({&tensor, 1}), false, x);
        REQUIRE(same);
      }
      check_close(got, reference::matmul(x, weights, {}, in, out), unit(DType::kF32), error_of_fp8_sums(in));
    }
  }
}

TEST_CASE("matmul_silu_mul with FP8 weights equals its real values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 81);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const Fp8Sizes& sizes : {Fp8Sizes{3, 300, 70}, Fp8Sizes{random.integer(1, 40), random.integer(1, 300), 31}}) {
      const auto [rows, in, out] = sizes;
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out);
      const Fp8Storage gate = random_fp8(random, out, in, {128, 128});
      const Fp8Storage up = random_fp8(random, out, in, {1, 0});
      const Values x = reference::rounded(random.normal(rows * in, 0.05f), backend->compute_dtype());
      const auto sums = [&](const Fp8Storage& weight) {
        return reference::matmul(x, reference::rounded(tensor::decode(weight.matrix), backend_case.w8_dtype()), {},
                                 sizes.in, sizes.out);
      };
      check_close(multiply(*backend, *backend->pack_gate_up_fp8(gate.matrix, up.matrix), true, x),
                  reference::activate({}, sums(gate), sums(up)), unit(backend->compute_dtype()), error_of_fp8_sums(in));
    }
  }
}

TEST_CASE("a row of an FP8 GEMM does not depend on the other rows") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 82);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (int i = 0; i < 2; ++i) {
      const Fp8Block block = any_block(random);
      const int64_t in = random.integer(1, 900);
      const int64_t out = random.integer(1, 140);
      const Fp8Storage storage = random_fp8(random, out, in, block);
      const bool gate_up = random.integer(0, 1) != 0;
      const auto weight =
          gate_up ? backend->pack_gate_up_fp8(storage.matrix, storage.matrix) : backend->pack_fp8({&storage.matrix, 1});
      constexpr int64_t kRows = 140;
      const Values x = reference::rounded(random.normal(kRows * in), backend->compute_dtype());
      const Values whole = multiply(*backend, *weight, gate_up, x);
      for (const int64_t count :
           {int64_t{1}, random.integer(2, 4), random.integer(5, 12), random.integer(13, 24), random.integer(25, 130)}) {
        INFO(backend_case.name << ", blocks " << block.rows << " x " << block.cols << ": " << count << " x " << in
                               << " x " << out);
        const int64_t first = random.integer(0, kRows - count);
        const Values some =
            multiply(*backend, *weight, gate_up, Values(x.begin() + first * in, x.begin() + (first + count) * in));
        const bool same = std::memcmp(some.data(), whole.data() + first * out, some.size() * sizeof(float)) == 0;
        REQUIRE(same);
      }
    }
  }
}

TEST_CASE("FP8 codes have their values and NaN spoils its feature alone") {
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    // Feature n has code n as the weight of input 70, and zeros.
    constexpr int64_t kIn = 96;
    std::vector<std::byte> codes(256 * kIn);
    for (size_t code = 0; code < 256; ++code) codes[code * kIn + 70] = static_cast<std::byte>(code);
    const Fp8Matrix matrix{.name = "codes",
                           .rows = 256,
                           .cols = kIn,
                           .codes = codes.data(),
                           .row_bytes = kIn,
                           .scales = {0.25f},
                           .block_rows = 256,
                           .block_cols = kIn};
    const auto weight = backend->pack_fp8({&matrix, 1});
    for (const size_t rows : {1, 5, 20, 40}) {
      const Values got = multiply(*backend, *weight, false, Values(rows * kIn, 2.0f));
      for (size_t i = 0; i < got.size(); ++i) {
        const float value = tensor::kE4M3[i % 256];
        if (std::isnan(value)) {
          REQUIRE(std::isnan(got[i]));
        } else {
          REQUIRE(got[i] == value / 2);
        }
      }
    }
  }
}
