// The contract of tensor/backend.h: the bits of a row depend on neither the other rows, nor the chunking, nor where its
// pages lie.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>

#include "conformance/multiply.h"
#include "conformance/sequences.h"
#include "tensor/quantized_inputs.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

namespace {

/// Returns the GEMM of the chosen rows of `x` with the weight.
Values product_of_rows(tensor::Backend& backend, const tensor::PackedWeight& weight, bool gate_up, const Values& x,
                       const std::vector<int64_t>& rows) {
  const int64_t in = weight.in_features();
  Values chosen;
  for (const int64_t row : rows) chosen.insert(chosen.end(), x.begin() + row * in, x.begin() + (row + 1) * in);
  return multiply(backend, weight, gate_up, chosen);
}

/// A weight format to test.
struct WeightFormat {
  std::string_view name;
  bool is_plain = false;
  bool has_4_bits = false;
  tensor::W8Activations inputs = tensor::W8Activations::kUnquantized;
  tensor::W8Scaling scaling = tensor::W8Scaling::kPerGroup;
};

constexpr WeightFormat kWeightFormats[] = {
    {.name = "plain", .is_plain = true},
    {.name = "w8"},
    {.name = "mxint8", .scaling = tensor::W8Scaling::kPerGroupPowerOfTwo},
    {.name = "w4", .has_4_bits = true},
    // The formats from here on quantize inputs.
    {.name = "w8a8", .inputs = tensor::W8Activations::kInt8},
    {.name = "w8a8_int8", .inputs = tensor::W8Activations::kInt8, .scaling = tensor::W8Scaling::kPerChannel}};
constexpr size_t kWithoutRoundedInputs = 4;

std::unique_ptr<tensor::PackedWeight> pack_any(tensor::Backend& backend, const tensor::HostTensor& part, bool gate_up,
                                               const WeightFormat& format) {
  if (format.is_plain) return gate_up ? backend.pack_gate_up(part, part) : backend.pack({&part, 1});
  if (format.has_4_bits) {
    const tensor::CodeStorage storage = tensor::quantize_w4(part);
    const tensor::CodeMatrix matrix = storage.view();
    return gate_up ? backend.pack_gate_up_codes(matrix, matrix) : backend.pack_codes({&matrix, 1});
  }
  const tensor::W8Storage storage = tensor::quantize_w8(part, format.scaling);
  const tensor::W8Matrix matrix = storage.view();
  return gate_up ? backend.pack_gate_up_w8(matrix, matrix, format.inputs)
                 : backend.pack_w8({&matrix, 1}, format.inputs);
}

std::span<const WeightFormat> weight_formats(const tensor::Backend& backend) {
  return std::span(kWeightFormats)
      .first(tensor::quantizes_inputs(backend) ? std::size(kWeightFormats) : kWithoutRoundedInputs);
}

const WeightFormat& any_weight_format(Random& random, const tensor::Backend& backend) {
  const auto all = weight_formats(backend);
  return all[static_cast<size_t>(random.integer(0, static_cast<int64_t>(all.size()) - 1))];
}

}  // namespace

TEST_CASE("a row of a product does not depend on the other rows") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 20);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const int64_t in : {int64_t{130}, int64_t{2300}, random.integer(1, 900)}) {
      const int64_t out = random.integer(1, 140);
      const bool gate_up = random.integer(0, 1) != 0;
      const WeightFormat& format = any_weight_format(random, *backend);
      INFO(backend_case.name << ": in " << in << ", out " << out << ", gate-up " << gate_up << ", " << format.name);
      const HostMatrix stored(random.normal(out * in), backend->compute_dtype(), out, in);
      const tensor::HostTensor part = stored.tensor();
      const auto weight = pack_any(*backend, part, gate_up, format);
      constexpr int64_t kRows = 140;
      const Values x = random.normal(kRows * in);
      std::vector<int64_t> all(kRows);
      std::iota(all.begin(), all.end(), 0);
      const Values whole = product_of_rows(*backend, *weight, gate_up, x, all);
      for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{6}, int64_t{7}, int64_t{8}, int64_t{12}, int64_t{13},
                                  int64_t{24}, int64_t{25}, int64_t{57}, random.integer(1, kRows)}) {
        std::vector<int64_t> rows = all;
        std::shuffle(rows.begin(), rows.end(), random.engine());
        rows.resize(static_cast<size_t>(count));
        const Values some = product_of_rows(*backend, *weight, gate_up, x, rows);
        for (size_t r = 0; r < rows.size(); ++r) {
          INFO("row " << rows[r] << " among " << count);
          REQUIRE(std::equal(some.begin() + static_cast<int64_t>(r) * out,
                             some.begin() + static_cast<int64_t>(r + 1) * out, whole.begin() + rows[r] * out));
        }
      }
    }
  }
}

TEST_CASE("a GEMM row has the same bits alone for all sizes") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 35);
  constexpr int64_t kIn = 2200;
  constexpr int64_t kOut = 70;
  constexpr int64_t kRows = 40;
  // Values from 2^least to 2^most in size.
  const auto of_any_size = [&](int64_t count, int64_t least, int64_t most) {
    Values values = random.normal(count);
    for (float& value : values) value = std::ldexp(value, static_cast<int>(random.integer(least, most)));
    return values;
  };
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    // Sums that lose most of what they add, and such that are subnormal.
    for (const auto& [least, most] : {std::pair{-30, 30}, {20, 60}, {-85, -80}}) {
      const HostMatrix stored(of_any_size(kOut * kIn, least, most), backend->compute_dtype(), kOut, kIn);
      const Values x = reference::rounded(of_any_size(kRows * kIn, -50, -40), backend->compute_dtype());
      std::vector<int64_t> rows(kRows);
      std::iota(rows.begin(), rows.end(), 0);
      const WeightFormat& format = any_weight_format(random, *backend);
      INFO(backend_case.name << ", " << format.name << ", from 2^" << least << " to 2^" << most);
      const auto weight = pack_any(*backend, stored.tensor(), false, format);
      const Values together = product_of_rows(*backend, *weight, false, x, rows);
      for (const int64_t count : {1, 2, 3, 16, 30}) {
        const Values some = product_of_rows(*backend, *weight, false, x, {rows.begin(), rows.begin() + count});
        REQUIRE(std::memcmp(some.data(), together.data(), some.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("a row of a large GEMM does not depend on its blocking") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 23);
  constexpr int64_t kIn = 2100;  // more than the rows of one block share at a time
  constexpr int64_t kOut = 330;
  constexpr int64_t kRows = 545;  // two blocks and a short one
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    const WeightFormat& format = any_weight_format(random, *backend);
    INFO(backend_case.name << ", " << format.name);
    const HostMatrix stored(random.normal(kOut * kIn), backend->compute_dtype(), kOut, kIn);
    const tensor::HostTensor part = stored.tensor();
    const auto weight = pack_any(*backend, part, false, format);
    const Values x = random.normal(kRows * kIn);
    std::vector<int64_t> rows(kRows);
    std::iota(rows.begin(), rows.end(), 0);
    const Values whole = product_of_rows(*backend, *weight, false, x, rows);
    for (const int64_t count : {int64_t{1}, random.integer(2, 33), random.integer(34, kRows)}) {
      rows.resize(static_cast<size_t>(count));
      std::iota(rows.begin(), rows.end(), kRows - count);
      const Values some = product_of_rows(*backend, *weight, false, x, rows);
      INFO("the last " << count << " rows");
      REQUIRE(std::equal(some.begin(), some.end(), whole.end() - count * kOut));
    }
  }
}

TEST_CASE("attention does not depend on chunks or pages or company") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 21);
  const AttentionCase cases[] = {
      {.head_count = 14, .kv_head_count = 2},
      {.head_count = 3, .kv_head_count = 1, .head_dim = 80, .rotary_dim = 40, .sliding_window = 33},
      {.head_count = 2, .kv_head_count = 2, .head_dim = 24, .rotary_dim = 24, .norms = true},
      {.head_count = 8, .kv_head_count = 2, .sliding_window = 40, .soft_cap = 2.0f, .sinks = true},
      {.head_count = 4, .kv_head_count = 2, .norms = true, .norms_all_heads = true, .query_beta = 0.2f},
      {.head_count = 6, .kv_head_count = 2, .norms = true, .value_norm = true, .chunk_size = 64},
      {.head_count = 2, .kv_head_count = 1, .head_dim = 264, .rotary_dim = 64, .norms = true, .values_are_keys = true},
  };
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (AttentionCase sizes : cases) {
      if (!sizes.is_computed_by(*backend)) continue;
      const Weights weights = random_weights(random, sizes);
      TestSequence sequence = random_sequence(random, sizes, static_cast<int32_t>(random.integer(60, 200)), false);
      sequence.chunks = {sequence.length};
      const Values whole = feed(*backend, sizes, weights, {sequence}, {.page_seed = 1})[0];
      for (const int32_t page_size : {1, 16, 64, 7}) {
        sizes.page_size = page_size;
        TestSequence same = random_sequence(random, sizes, sequence.length, page_size == 1);
        same.qkv = sequence.qkv;
        const TestSequence other = random_sequence(random, sizes, 50, false);
        INFO(backend_case.name << ": " << sizes.to_string() << ", " << same.chunks.size() << " chunks");
        const auto got =
            feed(*backend, sizes, weights, {other, same, other}, {.page_seed = test_seed(), .noise = true});
        REQUIRE(got[1] == whole);
        REQUIRE(got[0] == got[2]);
      }
    }
  }
}

TEST_CASE("attention does not depend on how a long context was cut") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 22);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const int32_t window : {0, 2060}) {
      INFO(backend_case.name << ", window " << window);
      const AttentionCase sizes{.head_count = 2,
                                .kv_head_count = 1,
                                .head_dim = 32,
                                .rotary_dim = 32,
                                .sliding_window = window,
                                .page_size = 64};
      const Weights weights = random_weights(random, sizes);
      TestSequence sequence = random_sequence(random, sizes, 2250, false);
      sequence.chunks = {2250};
      const Values whole = feed(*backend, sizes, weights, {sequence}, {.page_seed = 1})[0];
      sequence.chunks = {2040, 1, 1, 1, 1, 1, 1, 1, 1, 1, 90, 1, 110};
      REQUIRE(std::accumulate(sequence.chunks.begin(), sequence.chunks.end(), 0) == sequence.length);
      REQUIRE(feed(*backend, sizes, weights, {sequence}, {.page_seed = test_seed(), .noise = true})[0] == whole);
    }
  }
}
