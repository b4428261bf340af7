// Latent attention whose expansion stays in E4M3: the values of its codes, with the same bits in any batch and rank.

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "cpu/cpu_backend.h"
#include "cpu/memory.h"
#include "conformance/latent_checks.h"
#include "conformance/random_fp8.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::LatentShape;

namespace {

struct LatentFp8Case {
  LatentCase sizes;
  Fp8Block block;
  bool has_groups = true;  ///< of rows that share scales; else queries are multiplied by the scales of rows
  [[nodiscard]] std::string to_string() const {
    return fmt::format("{}, blocks {} x {}", sizes.to_string(), block.rows, block.cols);
  }
};

/// Returns the sizes of DeepSeek-V3 and GLM-4.7-Flash with fewer heads, and small ones of each kind of scales.
std::vector<LatentFp8Case> latent_fp8_cases() {
  return {{{shape_of(3, 128, 16, 128, 256), 16}, {128, 128}},
          {{shape_of(4, 192, 64, 256, 128), 16}, {128, 128}},
          {{shape_of(2, 64, 32, 96, 96), 7}, {32, 64}},
          {{shape_of(5, 40, 16, 24, 64), 16}, {64, 32}},
          {{shape_of(3, 24, 8, 40, 72), 16}, {0, 0}},
          {{shape_of(3, 24, 8, 40, 72), 16}, {1, 0}, false},
          {{shape_of(4, 32, 16, 24, 32), 64}, {8, 32}, false},
          // Their rows for the key are decoded.
          {{shape_of(2, 64, 16, 64, 128), 16}, {1, 32}, false},
          {{shape_of(3, 48, 16, 64, 128), 7}, {128, 64}, false}};
}

/// Weights whose rows and columns differ in magnitude.
struct LatentFp8Weights {
  LatentFp8Weights(Random& random, const LatentShape& shape, Fp8Block block)
      : weights(random_latent_weights(random, shape)) {
    const int64_t rows = int64_t{shape.head_count} * (shape.nope_dim + shape.value_dim);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t some_rows = row / 8;
      for (int64_t col = 0; col < shape.latent_dim; ++col) {
        const auto exponent = static_cast<float>((some_rows * 5 + col / 32 * 3) % 4 - 2);
        weights.kv_b[static_cast<size_t>(row * shape.latent_dim + col)] *= std::exp2(exponent);
      }
    }
    storage = rounded_to_fp8(HostMatrix(weights.kv_b, DType::kF32, rows, shape.latent_dim).tensor(), block);
    weights.fp8 = &storage.matrix;
    weights.kv_b = tensor::decode(storage.matrix);
  }
  LatentFp8Weights(const LatentFp8Weights&) = delete;

  LatentWeights weights;
  Fp8Storage storage;
};

/// Calls body(backend, its case) for each backend that packs expansions in E4M3.
template <class Body>
void for_each_fp8_backend(const Body& body) {
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    REQUIRE(backend->packs_fp8_latents());
    body(*backend, backend_case);
  }
}

constexpr auto each_fp8_backend = [](const auto& body) {
  for_each_fp8_backend([&](tensor::Backend& backend, const BackendCase&) { body(backend); });
};

LatentFp8Weights made_fp8_weights(Random& random, const LatentFp8Case& test_case) {
  return {random, test_case.sizes.shape, test_case.block};
}

}  // namespace

TEST_CASE("latent attention with FP8 weights agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 55);
  for (const LatentFp8Case& test_case : latent_fp8_cases()) {
    INFO(test_case.to_string());
    const LatentShape& shape = test_case.sizes.shape;
    const LatentFp8Weights fp8(random, shape, test_case.block);
    LatentWeights decoded = fp8.weights;
    decoded.fp8 = nullptr;
    LatentSequence sequence = random_latents(random, shape, 35);
    sequence.chunks = {20, 1, 14};
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Values wanted = expected_latent_outputs(test_case.sizes, fp8.weights, sequence, dtype);
      for_each_fp8_backend([&](tensor::Backend& backend, const BackendCase& backend_case) {
        if (backend.compute_dtype() != dtype) return;
        const Values got = feed_latents(backend, test_case.sizes, fp8.weights, {sequence}, test_seed())[0];
        check_close(got, wanted, unit(dtype), dtype == DType::kBF16 ? 0.05 : 5e-5);
        const bool rounds_weights = !backend_case.scales_sums && backend_case.product_dtype == dtype;
        if (!test_case.has_groups || !rounds_weights) return;
        const bool same = got == feed_latents(backend, test_case.sizes, decoded, {sequence}, test_seed())[0];
        REQUIRE(same);
      });
    }
  }
}

TEST_CASE("FP8 latents do not depend on chunks pages or company") {
  check_expansions_have_equal_bits(each_fp8_backend, latent_fp8_cases(), made_fp8_weights, random_latents, 56);
}

TEST_CASE("the heads of a rank have the bits of all heads in FP8") {
  const auto with_rows = [](const LatentFp8Weights& fp8, tensor::TermRange rows, const auto& use) {
    const tensor::Fp8Matrix own = tensor::row_slice(*fp8.weights.fp8, rows);
    LatentWeights weights = fp8.weights;
    weights.fp8 = &own;
    use(weights);
  };
  check_heads_have_bits_of_all(each_fp8_backend, latent_fp8_cases(), made_fp8_weights, random_latents, with_rows, 57);
}

TEST_CASE("a NaN among FP8 codes of an expansion spoils its head alone") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 58);
  const LatentShape shape = shape_of(3, 32, 16, 32, 64);
  const auto value_dim = static_cast<size_t>(shape.value_dim);
  LatentFp8Weights fp8(random, shape, {32, 32});
  const LatentSequence sequence = random_latents(random, shape, 20);
  for_each_fp8_backend([&](tensor::Backend& backend, const BackendCase&) {
    const Values healthy = feed_latents(backend, {shape, 16}, fp8.weights, {sequence}, 1)[0];
    std::byte& code = fp8.storage.codes[(64 + 5) * 64 + 40];  // a key of head 1
    const std::byte before = std::exchange(code, std::byte{0x7F});
    const Values spoilt = feed_latents(backend, {shape, 16}, fp8.weights, {sequence}, 1)[0];
    code = before;
    for (size_t i = 0; i < healthy.size(); ++i) {
      const bool is_spoilt = i / value_dim % 3 == 1;
      REQUIRE(std::isfinite(healthy[i]));
      REQUIRE((is_spoilt ? std::isnan(spoilt[i]) : spoilt[i] == healthy[i]));
    }
  });
}

TEST_CASE("latents in FP8 take their bits or half of those of bf16") {
  Random random(1);
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = DType::kBF16});
  for (const auto& [shape, block, keeps] :
       {std::tuple{shape_of(2, 128, 16, 128, 128), Fp8Block{128, 64}, true},
        {shape_of(2, 128, 16, 128, 128), Fp8Block{1, 32}, false},    // a scale per row and group of columns
        {shape_of(2, 128, 16, 128, 128), Fp8Block{16, 128}, true},   // a scale per row
        {shape_of(2, 64, 16, 128, 128), Fp8Block{128, 64}, true},    // groups of 64
        {shape_of(2, 64, 16, 64, 128), Fp8Block{80, 64}, false}}) {  // heads begin inside blocks
    const LatentFp8Weights fp8(random, shape, block);
    INFO("blocks " << block.rows << " x " << block.cols << ", heads of " << shape.nope_dim << " + " << shape.value_dim);
    const uint64_t before = cpu::packed_bytes();
    const auto expansion = backend->pack_fp8_latent_expansion(*fp8.weights.fp8, shape);
    const double bits = 8 * static_cast<double>(cpu::packed_bytes() - before) /
                        static_cast<double>(fp8.weights.fp8->rows * fp8.weights.fp8->cols);
    INFO(bits << " bits per weight");
    REQUIRE(bits > (keeps ? 8 : 12));
    REQUIRE(bits < (keeps ? 9.1 : 13));
  }
}
