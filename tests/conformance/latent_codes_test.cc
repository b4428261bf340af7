// Latent attention whose expansion stays in codes, as GGUF files store its parts and other libraries its rows: near its
// values, with the same bits in any batch and rank.

#include <algorithm>

#include "cpu/cpu_backend.h"
#include "cpu/memory.h"
#include "conformance/latent_checks.h"
#include "conformance/random_codes.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::LatentShape;

namespace {

const CodeLayout& kind_named(std::string_view name) {
  for (const CodeLayout& kind : kCodeLayouts)
    if (kind.name == name) return kind;
  return *std::ranges::find(kByteKinds, name, &CodeLayout::name);
}

struct LatentCodeCase {
  LatentCase sizes;
  std::string_view queries;
  std::string_view values;
  [[nodiscard]] std::string to_string() const {
    return fmt::format("{}, {} and {}", sizes.to_string(), queries, values);
  }
};

/// Returns the sizes of DeepSeek-V3 and GLM-4.7-Flash with fewer heads, and others, in types of published files.
std::vector<LatentCodeCase> latent_code_cases() {
  return {{{shape_of(3, 128, 16, 128, 256), 16}, "q8_0", "q4_k"},
          {{shape_of(4, 192, 64, 256, 256), 16}, "q8_0", "q6_k"},
          {{shape_of(2, 64, 32, 96, 96), 7}, "q8_0", "q8_0"},
          {{shape_of(5, 32, 16, 24, 64), 64}, "q5_0", "q4_1"}};
}

/// The codes of an expansion, and kv_b with their values.
struct LatentCodeWeights {
  LatentCodeWeights(Random& random, const LatentCodeCase& test_case)
      : weights(random_latent_weights(random, test_case.sizes.shape)) {
    const LatentShape& shape = test_case.sizes.shape;
    const int64_t heads = shape.head_count;
    query_codes = random_codes(random, heads * shape.latent_dim, shape.nope_dim, kind_named(test_case.queries));
    value_codes = random_codes(random, heads * shape.value_dim, shape.latent_dim, kind_named(test_case.values));
    queries = query_codes.view();
    values = value_codes.view();
    Values turned(static_cast<size_t>(shape.nope_dim));
    for (int64_t head = 0; head < heads; ++head) {
      float* const keys = weights.kv_b.data() + head * (shape.nope_dim + shape.value_dim) * shape.latent_dim;
      for (int64_t latent = 0; latent < shape.latent_dim; ++latent) {
        tensor::read_floats(queries, head * shape.latent_dim + latent, 0, shape.nope_dim, turned.data());
        for (int64_t i = 0; i < shape.nope_dim; ++i)
          keys[i * shape.latent_dim + latent] = turned[static_cast<size_t>(i)];
      }
      for (int64_t row = 0; row < shape.value_dim; ++row)
        tensor::read_floats(values, head * shape.value_dim + row, 0, shape.latent_dim,
                            keys + (shape.nope_dim + row) * shape.latent_dim);
    }
    weights.queries = &queries;
    weights.values = &values;
  }
  LatentCodeWeights(const LatentCodeWeights&) = delete;

  LatentWeights weights;
  tensor::CodeStorage query_codes;
  tensor::CodeStorage value_codes;
  tensor::CodeMatrix queries;
  tensor::CodeMatrix values;
};

/// An expansion whose rows are in codes.
struct LatentRowCase {
  LatentCase sizes;
  std::string_view kind;
  double kept_bits = 0;  ///< per weight at most, codes and scales of the panels together
  [[nodiscard]] std::string to_string() const { return fmt::format("{}, {}", sizes.to_string(), kind); }
};

/// Returns the sizes of DeepSeek-V3 and GLM-4.7-Flash with fewer heads, and others, in formats of many libraries.
/// Half of the weights of `gptq of 8 bits`, `q4_k`, `q8_0` and `nvfp4` are decoded to bf16.
std::vector<LatentRowCase> latent_row_cases() {
  const LatentCase deepseek{shape_of(3, 128, 16, 128, 256), 16};
  const LatentCase glm{shape_of(4, 192, 64, 256, 256), 16};
  const LatentCase small{shape_of(5, 32, 16, 24, 64), 64};
  const LatentCase uneven{shape_of(2, 64, 32, 96, 96), 7};
  return {{deepseek, "w4a16 of 128", 4.6},
          {glm, "w4a16 of a row", 4.6},
          {glm, "awq", 5.4},
          {deepseek, "gptq", 5.4},
          {deepseek, "w5a16 with zero points", 6.4},
          {glm, "w6a16 of 128", 6.6},
          {deepseek, "mxfp4", 6.8},
          {small, "w4", 10.6},
          {deepseek, "w8a16 of a row", 8.6},
          {glm, "gptq of 8 bits", 12.5},
          {deepseek, "q4_k", 10.8},
          {glm, "nvfp4", 10.8},
          {uneven, "q8_0", 15.6},
          {uneven, "w4", 8.2},
          {uneven, "w8a16 of a row", 11.6}};
}

/// The codes of such rows, and their values.
struct LatentRowWeights {
  LatentRowWeights(Random& random, const LatentRowCase& test_case)
      : weights(random_latent_weights(random, test_case.sizes.shape)) {
    const LatentShape& shape = test_case.sizes.shape;
    const int64_t rows = int64_t{shape.head_count} * (shape.nope_dim + shape.value_dim);
    codes = random_codes(random, rows, shape.latent_dim, kind_named(test_case.kind));
    matrix = codes.view();
    for (int64_t row = 0; row < rows; ++row)
      tensor::read_floats(matrix, row, 0, shape.latent_dim, weights.kv_b.data() + row * shape.latent_dim);
    weights.rows = &matrix;
  }
  LatentRowWeights(const LatentRowWeights&) = delete;

  LatentWeights weights;
  tensor::CodeStorage codes;
  tensor::CodeMatrix matrix;
};

/// Calls body(backend) for each backend that keeps an expansion in codes.
template <class Body>
void for_each_packing_backend(const Body& body) {
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    REQUIRE(backend->packs_latent_codes());
    body(*backend);
  }
}

/// Returns queries whose scores over weights of about 1 are not all of one token.
LatentSequence moderate_latents(Random& random, const LatentShape& shape, int32_t length) {
  LatentSequence sequence = random_latents(random, shape, length);
  for (float& value : sequence.q) value *= 0.05f;
  return sequence;
}

/// Checks the outputs over expansions in codes against the reference with their exact values.
template <class Weights, class Case>
void check_near_reference(const std::vector<Case>& cases, uint64_t salt) {
  INFO("seed " << test_seed());
  Random random(test_seed() + salt);
  for (const auto& test_case : cases) {
    INFO(test_case.to_string());
    const LatentShape& shape = test_case.sizes.shape;
    const Weights codes(random, test_case);
    LatentSequence sequence = moderate_latents(random, shape, 35);
    sequence.chunks = {20, 1, 14};
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Values wanted = expected_latent_outputs(test_case.sizes, codes.weights, sequence, dtype);
      float largest = 0;
      for (const float value : wanted) largest = std::max(largest, std::abs(value));
      for_each_packing_backend([&](tensor::Backend& backend) {
        if (backend.compute_dtype() != dtype) return;
        const Values got = feed_latents(backend, test_case.sizes, codes.weights, {sequence}, test_seed())[0];
        check_close(got, wanted, unit(dtype), 0.03 * static_cast<double>(largest));
      });
    }
  }
}

constexpr auto each_packing_backend = [](const auto& body) { for_each_packing_backend(body); };
constexpr auto made_codes = [](Random& random, const LatentCodeCase& test_case) {
  return LatentCodeWeights(random, test_case);
};
constexpr auto made_rows = [](Random& random, const LatentRowCase& test_case) {
  return LatentRowWeights(random, test_case);
};

}  // namespace

TEST_CASE("latent attention with codes is near the reference") {
  check_near_reference<LatentCodeWeights>(latent_code_cases(), 60);
}

TEST_CASE("latents in codes do not depend on chunks pages or company") {
  check_expansions_have_equal_bits(each_packing_backend, latent_code_cases(), made_codes, moderate_latents, 61);
}

TEST_CASE("latent attention with rows in codes is near the reference") {
  check_near_reference<LatentRowWeights>(latent_row_cases(), 62);
}

TEST_CASE("rows of latents in codes do not depend on chunks or company") {
  check_expansions_have_equal_bits(each_packing_backend, latent_row_cases(), made_rows, moderate_latents, 63);
}

TEST_CASE("the heads of a rank have the bits of all heads in codes") {
  const auto with_rows = [](const LatentRowWeights& codes, tensor::TermRange rows, const auto& use) {
    const tensor::CodeMatrix own = tensor::row_slice(codes.matrix, rows);
    LatentWeights weights = codes.weights;
    weights.rows = &own;
    use(weights);
  };
  check_heads_have_bits_of_all(each_packing_backend, latent_row_cases(), made_rows, moderate_latents, with_rows, 64);
}

TEST_CASE("rows of latents in codes keep their bits in memory") {
  Random random(1);
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = DType::kBF16});
  for (const LatentRowCase& test_case : latent_row_cases()) {
    INFO(test_case.to_string());
    const LatentRowWeights codes(random, test_case);
    const uint64_t before = cpu::packed_bytes();
    const auto expansion = backend->pack_latent_code_rows(codes.matrix, test_case.sizes.shape);
    const auto bytes = static_cast<double>(cpu::packed_bytes() - before);
    const double bits = 8 * bytes / static_cast<double>(codes.matrix.rows * codes.matrix.cols);
    INFO(bits << " bits per weight");
    REQUIRE(bits <= test_case.kept_bits);
    REQUIRE(bits > 4);
  }
}
