// Weights in codes of 4 to 8 bits: that products with them are products with what they stand for.

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "conformance/harness.h"
#include "conformance/multiply.h"
#include "conformance/random_codes.h"

using namespace millrace;
using namespace millrace::test;
using tensor::CodeMatrix;
using tensor::CodeOffsets;
using tensor::CodeStorage;
using tensor::CodeValues;
using tensor::DType;

namespace {

struct Sizes {
  int64_t rows, in, out;
};

std::vector<Sizes> all_sizes(Random& random) {
  std::vector<Sizes> sizes = {{1, 1, 1},     {1, 64, 64},   {7, 33, 65},  {2, 896, 130},
                              {25, 257, 31}, {55, 300, 70}, {1, 2500, 64}};
  for (int i = 0; i < 2; ++i) sizes.push_back({random.integer(1, 40), random.integer(1, 400), random.integer(1, 300)});
  return sizes;
}

/// Allows for the rounding of each term and each sum, of parts that are at most some tens in size.
double error_of_sums(int64_t in) {
  return 80.0 * static_cast<double>(in) * 0x1p-24 + 1e-5;
}

}  // namespace

TEST_CASE("a GEMM with 4-bit weights equals one with their real values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 70);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const CodeLayout& kind : code_layouts_of(*backend)) {
      for (const auto& [rows, in, out] : all_sizes(random)) {
        INFO(backend_case.name << ", " << kind.name << ": " << rows << " x " << in << " x " << out);
        const CodeStorage storage = random_codes(random, out, in, kind);
        const CodeMatrix matrix = storage.view();
        const auto weight = backend->pack_codes({&matrix, 1});
        REQUIRE((weight->out_features() == out && weight->in_features() == in));
        const Values x = reference::rounded(random.normal(rows * in), backend->compute_dtype());
        const Values wanted =
            reference::matmul(reference::rounded_to_int8(x, in), reference::to_floats(matrix), {}, in, out);
        check_close(multiply(*backend, *weight, false, x), wanted, unit(DType::kF32), error_of_sums(in));
      }
    }
  }
}

TEST_CASE("4-bit GEMMs have equal bits on every ISA with fused sums") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 71);
  std::vector<CodeLayout> kinds(std::begin(kCodeLayouts), std::end(kCodeLayouts));
  kinds.insert(kinds.end(), std::begin(kByteKinds), std::end(kByteKinds));
  for (const CodeLayout& kind : kinds) {
    const Sizes sizes{random.integer(1, 40), random.integer(1, 700), random.integer(1, 140)};
    const CodeStorage storage = random_codes(random, sizes.out, sizes.in, kind);
    const CodeMatrix matrix = storage.view();
    const Values x = reference::rounded(random.normal(sizes.rows * sizes.in), DType::kBF16);
    std::map<std::string, Values> results;
    for (const BackendCase& backend_case : backend_cases()) {
      const auto backend = backend_case.make();
      // Without the instruction products are rounded before they are added.
      if (!backend->packs_codes() || backend_case.name.find("portable") != std::string::npos) continue;
      if (kind.has_half_minimums && !backend->packs_half_minimums()) continue;
      results[backend_case.name] = multiply(*backend, *backend->pack_codes({&matrix, 1}), false, x);
    }
    for (const auto& [name, result] : results) {
      INFO(name << ", " << kind.name << ": " << sizes.rows << " x " << sizes.in << " x " << sizes.out);
      const bool same = result == results.begin()->second;
      REQUIRE(same);
    }
  }
}

TEST_CASE("a row of a 4-bit GEMM does not depend on the other rows") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 72);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const CodeLayout& kind : code_layouts_of(*backend)) {
      const int64_t in = random.integer(1, 900);
      const int64_t out = random.integer(1, 140);
      const CodeStorage storage = random_codes(random, out, in, kind);
      const CodeMatrix matrix = storage.view();
      const bool gate_up = random.integer(0, 1) != 0;
      const auto weight = gate_up ? backend->pack_gate_up_codes(matrix, matrix) : backend->pack_codes({&matrix, 1});
      constexpr int64_t kRows = 70;
      const Values x = reference::rounded(random.normal(kRows * in), backend->compute_dtype());
      const Values whole = multiply(*backend, *weight, gate_up, x);
      for (const int64_t count :
           {int64_t{1}, random.integer(2, 4), random.integer(5, 7), random.integer(8, 16), random.integer(17, 64)}) {
        INFO(backend_case.name << ", " << kind.name << ": " << count << " x " << in << " x " << out);
        const int64_t first = random.integer(0, kRows - count);
        const Values some =
            multiply(*backend, *weight, gate_up, Values(x.begin() + first * in, x.begin() + (first + count) * in));
        const bool same = std::memcmp(some.data(), whole.data() + first * out, some.size() * sizeof(float)) == 0;
        REQUIRE(same);
      }
    }
  }
}

TEST_CASE("4-bit parts with other scales and groups are packed together") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 73);
  constexpr int64_t kIn = 400;
  const std::array<std::vector<CodeLayout>, 4> stacks = {
      std::vector<CodeLayout>{kCodeLayouts[0], kCodeLayouts[1], kCodeLayouts[4]},
      {kCodeLayouts[5], kCodeLayouts[6]},
      {kCodeLayouts[7], kCodeLayouts[8]},
      {kCodeLayouts[10], kCodeLayouts[10]}};
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    if (!backend->packs_codes()) continue;
    for (const std::vector<CodeLayout>& kinds : stacks) {
      std::vector<CodeStorage> storages;
      std::vector<CodeMatrix> parts;
      Values weights;
      for (const CodeLayout& kind : kinds) storages.push_back(random_codes(random, random.integer(1, 70), kIn, kind));
      int64_t out = 0;
      for (const CodeStorage& storage : storages) {
        parts.push_back(storage.view());
        const Values values = reference::to_floats(parts.back());
        weights.insert(weights.end(), values.begin(), values.end());
        out += storage.rows;
      }
      const int64_t rows = random.integer(1, 20);
      const Values x = reference::rounded(random.normal(rows * kIn), backend->compute_dtype());
      const Values wanted = reference::matmul(reference::rounded_to_int8(x, kIn), weights, {}, kIn, out);
      check_close(multiply(*backend, *backend->pack_codes(parts), false, x), wanted, unit(DType::kF32),
                  error_of_sums(kIn));
    }
  }
}

/// Kinds of a gate, its up, and a part beside them.
constexpr std::array<std::array<const char*, 3>, 18> kMixtures = {{{"q4_k", "q4_k", "q6_k"},
                                                                   {"q6_k", "q5_k", "q4_k"},
                                                                   {"w4", "q8_0", "q5_1"},
                                                                   {"iq4_xs", "q6_k", "q5_k"},
                                                                   {"mxfp4", "q8_0", "q8_0"},
                                                                   {"gptq", "gptq of 8 bits", "w4"},
                                                                   {"iq4_nl", "q4_1", "q4_0 of none"},
                                                                   {"q4_k", "q5_k", "q5_1"},
                                                                   {"w4", "q4_k", "q5_0"},
                                                                   {"mxfp4", "q5_0", "w4"},
                                                                   {"gptq", "q5_0", "w5a16 with zero points"},
                                                                   {"w5a16 with zero points", "q5_0", "q8_0"},
                                                                   {"q4_k", "q6_k", "w6a16 of 128"},
                                                                   {"q6_k", "w6a16 of 128", "q8_0"},
                                                                   {"gptq", "w6a16 of 128", "w6a16 with zero points"},
                                                                   {"q2_k", "q3_k", "q2_k"},
                                                                   {"q3_k", "q4_k", "q3_k"},
                                                                   {"q4_k", "q2_k", "q8_0"}}};

TEST_CASE("parts of several kinds of codes are packed together") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 78);
  constexpr int64_t kIn = 600;
  const auto kind = [](std::string_view name) {
    for (const CodeLayout& each : kCodeLayouts)
      if (each.name == name) return each;
    for (const CodeLayout& each : kByteKinds)
      if (each.name == name) return each;
    FAIL(name);
    return CodeLayout{};
  };
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->packs_codes()) continue;
    for (const auto& names : kMixtures) {
      INFO(backend_case.name << ": " << names[0] << ", " << names[1] << ", " << names[2]);
      const auto packs = [&](std::string_view name) { return name != "q2_k" || backend->packs_half_minimums(); };
      if (!std::ranges::all_of(names, packs)) continue;
      std::vector<CodeStorage> storages;
      std::vector<CodeMatrix> parts;
      Values weights;
      const int64_t pair_rows = random.integer(1, 70);
      for (size_t i = 0; i < names.size(); ++i) {
        const int64_t rows = i == 2 ? random.integer(1, 150) : pair_rows;
        const std::string_view name = names[i] == std::string_view("q4_0 of none") ? "w4" : names[i];
        storages.push_back(random_codes(random, rows, kIn, kind(name)));
      }
      for (const CodeStorage& storage : storages) {
        parts.push_back(storage.view());
        const Values values = reference::to_floats(parts.back());
        weights.insert(weights.end(), values.begin(), values.end());
      }
      const int64_t out = 2 * pair_rows + parts[2].rows;
      constexpr int64_t kRows = 45;
      const Values x = reference::rounded(random.normal(kRows * kIn, 0.2f), backend->compute_dtype());
      const Values inputs = reference::rounded_to_int8(x, kIn);
      const auto stack = backend->pack_codes(parts);
      REQUIRE(stack->out_features() == out);
      const Values whole = multiply(*backend, *stack, false, x);
      check_close(whole, reference::matmul(inputs, weights, {}, kIn, out), unit(DType::kF32), error_of_sums(kIn));
      const Values first = multiply(*backend, *stack, false, Values(x.begin(), x.begin() + kIn));
      const bool same = std::memcmp(first.data(), whole.data(), first.size() * sizeof(float)) == 0;
      REQUIRE(same);
      // A part has the bits that it has alone.
      const Values last = multiply(*backend, *backend->pack_codes({&parts[2], 1}), false, x);
      for (int64_t row = 0; row < kRows; ++row) {
        const bool is_part = std::equal(last.begin() + row * parts[2].rows, last.begin() + (row + 1) * parts[2].rows,
                                        whole.begin() + row * out + 2 * pair_rows);
        REQUIRE(is_part);
      }
      const auto pair = backend->pack_gate_up_codes(parts[0], parts[1]);
      const Values wanted =
          reference::activate({}, reference::matmul(inputs, reference::to_floats(parts[0]), {}, kIn, pair_rows),
                              reference::matmul(inputs, reference::to_floats(parts[1]), {}, kIn, pair_rows));
      const Values activated = multiply(*backend, *pair, true, x);
      check_close(activated, wanted, unit(backend->compute_dtype()), 4 * error_of_sums(kIn));
      const Values few = multiply(*backend, *pair, true, Values(x.begin(), x.begin() + 3 * kIn));
      const bool equal = std::memcmp(few.data(), activated.data(), few.size() * sizeof(float)) == 0;
      REQUIRE(equal);
    }
  }
}

TEST_CASE("codes of fewer than 8 bits give the bits of bytes") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 79);
  constexpr int64_t kRows = 40;
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->packs_codes()) continue;
    for (const CodeLayout& kind : code_layouts_of(*backend)) {
      if (kind.bits == 4 || kind.integer_bits == 8) continue;
      const int64_t in = random.integer(1, 700);
      const int64_t out = random.integer(1, 140);
      CodeStorage storage = random_codes(random, out, in, kind);
      const CodeMatrix few = storage.view();
      CodeMatrix bytes = few;
      bytes.integer_bits = 8;
      const auto packed = backend->pack_codes({&few, 1});
      const auto wanted = backend->pack_codes({&bytes, 1});
      const Values x = reference::rounded(random.normal(kRows * in), backend->compute_dtype());
      for (const int64_t rows :
           {int64_t{1}, random.integer(2, 3), random.integer(4, 6), random.integer(7, 16), kRows}) {
        INFO(backend_case.name << ", " << kind.name << ": " << rows << " x " << in << " x " << out);
        const Values some(x.begin(), x.begin() + rows * in);
        const Values got = multiply(*backend, *packed, false, some);
        const Values of_bytes = multiply(*backend, *wanted, false, some);
        const bool same = std::memcmp(got.data(), of_bytes.data(), got.size() * sizeof(float)) == 0;
        REQUIRE(same);
      }
    }
  }
}

TEST_CASE("matmul_silu_mul with 4-bit weights equals its real values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 74);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->packs_codes()) continue;
    for (const auto& [rows, in, out] : all_sizes(random)) {
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out);
      const CodeStorage gate = random_codes(random, out, in, kCodeLayouts[0]);
      const CodeStorage up = random_codes(random, out, in, kCodeLayouts[1]);
      const Values x = reference::rounded(random.normal(rows * in, 0.05f), backend->compute_dtype());
      const Values inputs = reference::rounded_to_int8(x, in);
      const Values wanted =
          reference::activate({}, reference::matmul(inputs, reference::to_floats(gate.view()), {}, in, out),
                              reference::matmul(inputs, reference::to_floats(up.view()), {}, in, out));
      check_close(multiply(*backend, *backend->pack_gate_up_codes(gate.view(), up.view()), true, x), wanted,
                  unit(backend->compute_dtype()), error_of_sums(in));
    }
  }
}

TEST_CASE("an input that is not finite makes its row NaN in 4-bit GEMMs") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const BackendCase& backend_case : backend_cases()) {
      INFO(backend_case.name << ", " << bad);
      const auto backend = backend_case.make();
      if (!backend->packs_codes()) continue;
      const CodeStorage storage = tensor::quantize_w4(HostMatrix(Values(70 * 64, 1.0f), DType::kF32, 70, 64).tensor());
      const CodeMatrix matrix = storage.view();
      const auto weight = backend->pack_codes({&matrix, 1});
      for (const size_t rows : {1, 3, 40}) {
        Values x(rows * 64, 1.0f);
        x[rows / 2 * 64 + 40] = bad;
        const Values got = multiply(*backend, *weight, false, x);
        for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::isnan(got[i]) == (i / 70 == rows / 2));
      }
    }
  }
}

TEST_CASE("4-bit rounding beats a scale of the largest magnitude") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 75);
  constexpr int64_t kRows = 300;
  constexpr int64_t kCols = 997;  // the last group has 5
  const int64_t group = std::array{32, 128}[static_cast<size_t>(random.integer(0, 1))];
  const Values weights = random.normal(kRows * kCols, std::exp2(static_cast<float>(random.integer(-90, 90))));
  const CodeStorage storage = tensor::quantize_w4(HostMatrix(weights, DType::kF32, kRows, kCols).tensor(), group);
  const Values rounded = reference::to_floats(storage.view());
  double error = 0.0;
  double simple_error = 0.0;
  double largest_error = 0.0;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t first = 0; first < kCols; first += group) {
      const int64_t end = std::min(first + group, kCols);
      double largest = 0.0;
      for (int64_t k = first; k < end; ++k)
        largest = std::max(largest, std::abs(double{weights[static_cast<size_t>(row * kCols + k)]}));
      for (int64_t k = first; k < end; ++k) {
        const auto at = static_cast<size_t>(row * kCols + k);
        const double value = double{weights[at]} / largest;  // squares of small weights would vanish
        const double off = double{rounded[at]} / largest - value;
        error += off * off;
        simple_error += std::pow(std::nearbyint(value * 7) / 7 - value, 2);
        largest_error = std::max(largest_error, std::abs(off));
      }
    }
  }
  REQUIRE(error < 0.9 * simple_error);
  REQUIRE(largest_error < 0.3);
}

TEST_CASE("4-bit groups of zeros and extreme and nonfinite weights") {
  const Values weights = extreme_weights();
  const CodeStorage storage = tensor::quantize_w4(HostMatrix(weights, DType::kF32, 1, 160).tensor());
  const Values rounded = reference::to_floats(storage.view());
  for (size_t i = 0; i < 64; ++i) REQUIRE(rounded[i] == 0.0f);
  REQUIRE(std::abs(rounded[64] / 3e38f - 1.0f) < 0.08f);
  REQUIRE(std::abs(rounded[65] / -3e38f - 1.0f) < 0.08f);
  for (size_t i = 96; i < 160; ++i) REQUIRE(std::isnan(rounded[i]));
}

TEST_CASE("columns and rows of a 4-bit matrix keep their values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 76);
  constexpr int64_t kCols = 350;
  std::vector<CodeLayout> kinds(std::begin(kCodeLayouts), std::end(kCodeLayouts));
  kinds.insert(kinds.end(), std::begin(kByteKinds), std::end(kByteKinds));
  for (const CodeLayout& kind : kinds) {
    INFO(kind.name);
    const CodeStorage storage = random_codes(random, 5, kCols, kind);
    const Values all = reference::to_floats(storage.view());
    Values wanted;
    for (int64_t row = 0; row < 5; ++row)
      wanted.insert(wanted.end(), all.begin() + row * kCols + 96, all.begin() + row * kCols + 301);
    REQUIRE(reference::to_floats(tensor::column_slice(storage.view(), {96, 301})) == wanted);
    REQUIRE(reference::to_floats(tensor::row_slice(storage.view(), {2, 4})) ==
            Values(all.begin() + 2 * kCols, all.begin() + 4 * kCols));
    const Values padded =
        reference::to_floats(tensor::padded_rows(tensor::row_slice(storage.view(), {3, 5}), 4).view());
    REQUIRE(std::equal(padded.begin(), padded.begin() + 2 * kCols, all.begin() + 3 * kCols));
    for (auto value = padded.begin() + 2 * kCols; value != padded.end(); ++value) REQUIRE(*value == 0.0f);
  }
}
