// Weights whose parts have several kinds of codes on the CUDA backend, and experts in codes. Their ops have the bits of
// those with the dequantized weights in bf16.

#include <algorithm>

#include "cuda_backend/coded_checks.h"
#include "tensor/slices.h"

using namespace millrace;
using namespace millrace::test;
using tensor::CodeMatrix;
using tensor::CodeStorage;
using tensor::DType;

namespace {

/// Parts with random sizes and kinds.
struct RandomParts {
  RandomParts(Random& random, int64_t in, size_t count) : plain({}, DType::kBF16, 0, in) {
    const std::vector<CodeLayout> kinds = all_code_layouts();
    const bool is_aligned = random.integer(0, 1) != 0;
    for (size_t i = 0; i < count; ++i) {
      const auto& kind = kinds[static_cast<size_t>(random.integer(0, std::ssize(kinds) - 1))];
      const int64_t rows = is_aligned ? 4 * random.integer(1, 30) : random.integer(1, 120);
      storages.push_back(random_codes(random, rows, in, kind));
      names += std::string(kind.name) + " of " + std::to_string(rows) + ", ";
    }
    for (const CodeStorage& storage : storages) {
      parts.push_back(storage.view());
      out += storage.rows;
    }
    plain = rounded(dequantized(parts), out, in);
  }
  std::string names;
  std::vector<CodeStorage> storages;
  std::vector<CodeMatrix> parts;
  int64_t out = 0;
  HostMatrix plain;
};

/// Returns hidden + x · Wᵀ + bias and, rounded to bf16, x · Wᵀ + bias.
std::pair<Values, Values> biased(tensor::Backend& backend, const tensor::PackedWeight& weight, const Values& x,
                                 const Values& bias, const Values& hidden) {
  const auto rows = static_cast<int64_t>(x.size()) / weight.in_features();
  const auto vector = backend.make_vector(bias);
  std::pair<Values, Values> results;
  backend.run_and_wait([&] {
    const DeviceMatrix left = make_matrix(backend, DType::kBF16, rows, weight.in_features());
    const DeviceMatrix sums = make_matrix(backend, DType::kF32, rows, weight.out_features());
    const DeviceMatrix out = make_matrix(backend, DType::kBF16, rows, weight.out_features());
    upload(backend, x, left);
    upload(backend, hidden, sums);
    backend.matmul_add(left.matrix, weight, vector.get(), sums.matrix);
    backend.matmul(left.matrix, weight, vector.get(), out.matrix);
    results = {download(backend, sums.matrix), download(backend, out.matrix)};
  });
  return results;
}

/// Experts of a kind, and their values.
struct ExpertPair {
  std::unique_ptr<tensor::Experts> coded;
  std::unique_ptr<tensor::Experts> plain;
};

ExpertPair random_experts(Random& random, tensor::Backend& backend, const CodeLayout& inputs, const CodeLayout& down,
                          int32_t count, int64_t hidden, int64_t inner) {
  const tensor::ExpertOptions options{.routing = {.experts_per_row = 2}, .activation = {}, .has_biases = false};
  const auto coded = backend.pack_experts(count, options, {});
  const auto plain = backend.pack_experts(count, options, {});
  for (int32_t expert = 0; expert < count; ++expert) {
    const CodeStorage gate = random_codes(random, inner, hidden, inputs);
    const CodeStorage up = random_codes(random, inner, hidden, inputs);
    const CodeStorage back = random_codes(random, hidden, inner, down);
    coded->add_codes(gate.view(), up.view(), back.view());
    plain->add(rounded(reference::to_floats(gate.view()), inner, hidden).tensor(),
               rounded(reference::to_floats(up.view()), inner, hidden).tensor(),
               rounded(reference::to_floats(back.view()), hidden, inner).tensor());
  }
  return {coded->finish(), plain->finish()};
}

Values mixed(tensor::Backend& backend, const tensor::Experts& experts, const Values& x, const Values& logits,
             int64_t hidden) {
  const auto rows = static_cast<int64_t>(x.size()) / hidden;
  const std::vector<int32_t> row_begin{0, static_cast<int32_t>(rows)};
  const std::vector<int32_t> zeros(2);
  const tensor::BatchLayout batch{.row_begin = row_begin,
                                  .prefix = std::span(zeros).first(1),
                                  .page_begin = zeros,
                                  .pages = {},
                                  .padded_rows = 0,
                                  .padded_sequences = 0};
  Values result;
  backend.run_and_wait([&] {
    const DeviceMatrix left = make_matrix(backend, DType::kBF16, rows, hidden);
    const DeviceMatrix routed = make_matrix(backend, DType::kF32, rows, experts.count());
    const DeviceMatrix out = make_matrix(backend, DType::kF32, rows, hidden);
    upload(backend, x, left);
    upload(backend, logits, routed);
    upload(backend, Values(x.size(), 0.0f), out);
    backend.fused_moe(left.matrix, routed.matrix, experts, backend.upload(batch), out.matrix);
    result = download(backend, out.matrix);
  });
  return result;
}

}  // namespace

TEST_CASE("parts of several kinds of codes are one weight on a GPU") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 317);
  const auto backend = make_coding_backend();
  for (int round = 0; round < 9; ++round) {
    // The last rounds have sums long enough to be split.
    const bool is_long = round >= 6;
    const int64_t in = is_long ? random.integer(577, 700) : random.integer(1, 500);
    const RandomParts stack(random, in, static_cast<size_t>(random.integer(2, 5)));
    INFO(stack.names << "from " << in);
    const tensor::HostTensor tensor = stack.plain.tensor();
    const auto coded = backend->pack_codes(stack.parts);
    const auto plain = backend->pack({&tensor, 1});
    REQUIRE(coded->out_features() == stack.out);
    check_same(random, *backend, *coded, *plain, false);
    // A rank has some features, and the sums of all ranks are split alike.
    const int64_t whole = is_long ? 16384 : 4 * stack.out;
    coded->set_whole_features(whole);
    plain->set_whole_features(whole);
    check_same(random, *backend, *coded, *plain, false);
  }
}

TEST_CASE("mixed codes on a GPU add biases and residuals") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 318);
  const auto backend = make_coding_backend();
  for (const int64_t rows : {int64_t{1}, int64_t{33}, int64_t{300}}) {
    const int64_t in = random.integer(1, 700);
    const RandomParts stack(random, in, 3);
    INFO(stack.names << "from " << in << ", " << rows << " rows");
    const tensor::HostTensor tensor = stack.plain.tensor();
    const Values x = reference::rounded(random.normal(rows * in), DType::kBF16);
    const Values bias = random.normal(stack.out);
    const Values hidden = random.normal(rows * stack.out);
    const auto got = biased(*backend, *backend->pack_codes(stack.parts), x, bias, hidden);
    const auto wanted = biased(*backend, *backend->pack({&tensor, 1}), x, bias, hidden);
    const bool same = same_bits(got.first, wanted.first) && same_bits(got.second, wanted.second);
    REQUIRE(same);
  }
}

TEST_CASE("experts in codes on a GPU have the bits of their bf16 values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 319);
  const auto backend = make_coding_backend();
  const std::vector<CodeLayout> kinds = all_code_layouts();
  for (const CodeLayout& inputs : kinds) {
    const CodeLayout& down = kinds[static_cast<size_t>(random.integer(0, std::ssize(kinds) - 1))];
    const int64_t hidden = 4 * random.integer(8, 40);
    const int64_t inner = 4 * random.integer(8, 40);
    constexpr int32_t kCount = 3;
    INFO(inputs.name << " and " << down.name << ": " << hidden << " to " << inner);
    const ExpertPair experts = random_experts(random, *backend, inputs, down, kCount, hidden, inner);
    for (const int64_t rows : {int64_t{1}, int64_t{20}}) {
      const Values x = reference::rounded(random.normal(rows * hidden, 0.2f), DType::kBF16);
      const Values logits = random.normal(rows * kCount);
      const bool same = same_bits(mixed(*backend, *experts.coded, x, logits, hidden),
                                  mixed(*backend, *experts.plain, x, logits, hidden));
      REQUIRE(same);
    }
  }
}

TEST_CASE("all factors of 16 inputs are exact on a GPU") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 320);
  const auto backend = make_coding_backend();
  for (const CodeLayout& kind : all_code_layouts()) {
    if (kind.half_scales == tensor::CodeHalfScales::kNone) continue;
    INFO(kind.name);
    CodeStorage storage = random_codes(random, 65, 64, kind);
    for (size_t i = 0; i < storage.half_scales.size(); ++i) {
      const auto factor = static_cast<uint8_t>(i);
      const bool is_nan = kind.half_scales == tensor::CodeHalfScales::kE4M3 && (factor & 0x7F) == 0x7F;
      storage.half_scales[i] = is_nan ? uint8_t{0} : factor;
    }
    const CodeMatrix matrix = storage.view();
    const HostMatrix plain = rounded(reference::to_floats(matrix), matrix.rows, matrix.cols);
    const tensor::HostTensor tensor = plain.tensor();
    check_same(random, *backend, *backend->pack_codes({&matrix, 1}), *backend->pack({&tensor, 1}), false);
  }
}
