// Weights of 4 and 8 bits on the CUDA backend: their ops have the bits of those with the dequantized weights in bf16.

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "cuda_backend/coded_checks.h"
#include "tensor/slices.h"

using namespace millrace;
using namespace millrace::test;
using tensor::CodeMatrix;
using tensor::CodeStorage;
using tensor::DType;
using tensor::W8Activations;
using tensor::W8Matrix;
using tensor::W8Storage;

namespace {

/// A matrix in E4M3 with random scales, which is some rows and columns of a stored one.
struct RandomFp8 {
  RandomFp8(Random& random, int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols) {
    const int64_t first_row = random.integer(0, 200);
    const int64_t row_blocks = (first_row + rows + block_rows - 1) / block_rows;
    const int64_t column_blocks = (cols + block_cols - 1) / block_cols;
    for (int64_t i = 0; i < rows * (cols + 3); ++i) {
      const int64_t code = random.integer(0, 255);
      codes.push_back(static_cast<std::byte>((code & 0x7F) == 0x7F ? 0 : code));
    }
    matrix = {.name = "fp8",
              .rows = rows,
              .cols = cols,
              .codes = codes.data(),
              .row_bytes = cols + 3,
              .scales = random.normal(row_blocks * column_blocks, 0.01f),
              .column_blocks = column_blocks,
              .block_rows = block_rows,
              .block_cols = block_cols,
              .first_row = first_row};
  }
  std::vector<std::byte> codes;
  tensor::Fp8Matrix matrix;
};

using PackShards = std::function<std::unique_ptr<tensor::PackedWeight>(const tensor::SumShards&)>;

/// Fails unless a weight's columns of a whole and of ranks have the bits of its values.
void check_shards(Random& random, tensor::Backend& backend, int64_t head_dim, const HostMatrix& plain,
                  const PackShards& pack) {
  for (const tensor::RankPosition position : {tensor::RankPosition{0, 1}, {1, 2}, {3, 4}}) {
    const tensor::SumShards shards = tensor::head_shards(8, head_dim, position);
    if (shards.owned().begin % tensor::kCodeUnit != 0) continue;
    INFO("heads of " << head_dim << ", rank " << position.rank << " of " << position.size);
    const auto wanted = backend.pack_sharded(tensor::column_slice(plain.tensor(), shards.owned()).tensor, shards);
    check_same(random, backend, *pack(shards), *wanted, false);
  }
}

}  // namespace

TEST_CASE("weights in codes on a GPU have the bits of their bf16 values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 310);
  const auto backend = make_coding_backend();
  for (const CodeLayout& kind : all_code_layouts()) {
    for (const int64_t in : {random.integer(1, 64), random.integer(65, 900)}) {
      const int64_t out = random.integer(1, 150);
      const bool gate_up = random.integer(0, 1) != 0;
      INFO(kind.name);
      const CodeStorage first = random_codes(random, out, in, kind);
      const CodeStorage second = random_codes(random, gate_up ? out : random.integer(1, 9), in, kind);
      const std::vector<CodeMatrix> parts = {first.view(), second.view()};
      const HostMatrix upper = rounded(reference::to_floats(parts[0]), parts[0].rows, in);
      const HostMatrix lower = rounded(reference::to_floats(parts[1]), parts[1].rows, in);
      const std::vector<tensor::HostTensor> plain = {upper.tensor(), lower.tensor()};
      if (gate_up) {
        check_same(random, *backend, *backend->pack_gate_up_codes(parts[0], parts[1]),
                   *backend->pack_gate_up(plain[0], plain[1]), true);
      } else {
        check_same(random, *backend, *backend->pack_codes(parts), *backend->pack(plain), false);
      }
    }
  }
}

TEST_CASE("4-bit parts of several kinds are one weight on a GPU") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 311);
  const auto backend = make_coding_backend();
  constexpr int64_t kIn = 450;
  using Names = std::vector<std::string_view>;
  // Integers with scales of all types, those with minimums, tables.
  for (const Names& kinds : {Names{"w4", "w4a16 of 128", "awq"}, Names{"w4", "w4a16 of a row"},
                             Names{"w4a16 of 128", "gptq"}, Names{"q4_1", "q4_k"}, Names{"iq4_nl", "iq4_xs"}}) {
    std::vector<CodeStorage> storages;
    std::vector<CodeMatrix> parts;
    int64_t out = 0;
    for (const std::string_view kind : kinds)
      storages.push_back(random_codes(random, random.integer(1, 70), kIn, code_layout(kind)));
    for (const CodeStorage& storage : storages) {
      parts.push_back(storage.view());
      out += storage.rows;
    }
    const HostMatrix plain = rounded(dequantized(parts), out, kIn);
    const tensor::HostTensor tensor = plain.tensor();
    check_same(random, *backend, *backend->pack_codes(parts), *backend->pack({&tensor, 1}), false);
  }
}

TEST_CASE("8-bit weights on a GPU have the bits of their bf16 values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 312);
  const auto backend = make_coding_backend();
  for (const tensor::W8Scaling scaling :
       {tensor::W8Scaling::kPerGroup, tensor::W8Scaling::kPerGroupPowerOfTwo, tensor::W8Scaling::kPerChannel}) {
    for (const int64_t in : {int64_t{1}, int64_t{64}, int64_t{330}, random.integer(1, 900)}) {
      const int64_t out = random.integer(1, 150);
      W8Storage storage =
          tensor::quantize_w8(HostMatrix(random.normal(out * in), DType::kF32, out, in).tensor(), scaling);
      storage.values.front() = -128;
      Values scales;
      for (const tensor::BFloat16 scale : storage.scales) scales.push_back(scale.to_float() * 1.001f);
      W8Matrix matrix = storage.view();
      if (scaling == tensor::W8Scaling::kPerChannel && random.integer(0, 1) != 0) {
        matrix.scales = reinterpret_cast<const std::byte*>(scales.data());
        matrix.scale_dtype = DType::kF32;
      }
      const HostMatrix plain = rounded(tensor::dequantize(matrix), out, in);
      const tensor::HostTensor tensor = plain.tensor();
      check_same(random, *backend, *backend->pack_w8({&matrix, 1}, W8Activations::kUnquantized),
                 *backend->pack({&tensor, 1}), false);
      check_same(random, *backend, *backend->pack_gate_up_w8(matrix, matrix, W8Activations::kUnquantized),
                 *backend->pack_gate_up(tensor, tensor), true);
    }
  }
}

TEST_CASE("FP8 weights on a GPU have the bits of their bf16 values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 316);
  const auto backend = make_coding_backend();
  for (const auto& [block_rows, block_cols] : {std::pair{128, 128}, {32, 64}, {1, 32}, {1, 100000}, {100000, 100000}}) {
    for (const int64_t in : {int64_t{1}, int64_t{64}, int64_t{330}, random.integer(1, 900)}) {
      const RandomFp8 first(random, random.integer(1, 150), in, block_rows, block_cols);
      const RandomFp8 second(random, random.integer(1, 9), in, block_rows, block_cols);
      INFO("blocks of " << block_rows << " by " << block_cols);
      const std::array parts = {first.matrix, second.matrix};
      const HostMatrix upper = rounded(tensor::decode(parts[0]), parts[0].rows, in);
      const HostMatrix lower = rounded(tensor::decode(parts[1]), parts[1].rows, in);
      const std::array plain = {upper.tensor(), lower.tensor()};
      check_same(random, *backend, *backend->pack_fp8(parts), *backend->pack(plain), false);
      check_same(random, *backend, *backend->pack_gate_up_fp8(parts[0], parts[0]),
                 *backend->pack_gate_up(plain[0], plain[0]), true);
    }
  }
}

TEST_CASE("all codes of E4M3 and their scales are exact on a GPU") {
  const auto backend = make_coding_backend();
  constexpr int64_t kRows = 256;
  std::vector<std::byte> codes(kRows * 64, std::byte{0});
  for (size_t row = 0; row < kRows; ++row) codes[row * 64 + row % 64] = static_cast<std::byte>(row);
  for (const float scale : {1.0f, 0x1p-100f, 0x1.234567p-9f, -0x1.fffffep+20f, 0.0f}) {
    const tensor::Fp8Matrix matrix{.name = "all",
                                   .rows = kRows,
                                   .cols = 64,
                                   .codes = codes.data(),
                                   .row_bytes = 64,
                                   .scales = {scale},
                                   .block_rows = kRows,
                                   .block_cols = 64};
    const Values got = multiply(*backend, *backend->pack_fp8({&matrix, 1}), false, Values(64, 1.0f));
    const Values weights = reference::rounded(tensor::decode(matrix), DType::kBF16);
    for (size_t row = 0; row < kRows; ++row) {
      const float wanted = weights[row * 64 + row % 64];
      INFO("code " << row << " times " << scale);
      REQUIRE((std::isnan(wanted) ? std::isnan(got[row]) : got[row] == wanted));
    }
  }
}

TEST_CASE("coded weights on a GPU keep their bits in many rows") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 313);
  const auto backend = make_coding_backend();
  for (const std::string_view kind : {"w4", "gptq", "q4_k", "nvfp4", "gptq of 8 bits", "q6_k"}) {
    INFO(kind);
    const int64_t in = random.integer(65, 400);
    const int64_t out = random.integer(1, 150);
    const CodeStorage storage = random_codes(random, out, in, code_layout(kind));
    const CodeMatrix matrix = storage.view();
    const HostMatrix plain = rounded(reference::to_floats(matrix), out, in);
    const tensor::HostTensor tensor = plain.tensor();
    const auto weight = backend->pack_codes({&matrix, 1});
    constexpr int64_t kRows = 270;  // which share dequantized panels
    const Values x = reference::rounded(random.normal(kRows * in), DType::kBF16);
    const Values all = multiply(*backend, *weight, false, x);
    const bool same = same_bits(all, multiply(*backend, *backend->pack({&tensor, 1}), false, x));
    REQUIRE(same);
    const Values some = multiply(*backend, *weight, false, Values(x.begin(), x.begin() + 200 * in));
    const bool alike = same_bits(some, Values(all.begin(), all.begin() + 200 * out));
    REQUIRE(alike);
  }
}

TEST_CASE("coded weights on a GPU keep their bits in shards") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 314);
  const auto backend = make_coding_backend();
  // Borders at steps, at units, and inside of units.
  for (const int64_t head_dim : {64, 96, 32, 20}) {
    const int64_t in = 8 * head_dim;
    const int64_t out = random.integer(1, 100);
    for (const std::string_view kind : {"w4", "q4_k", "nvfp4", "q6_k"}) {
      INFO(kind);
      const CodeStorage storage = random_codes(random, out, in, code_layout(kind));
      const HostMatrix plain = rounded(reference::to_floats(storage.view()), out, in);
      check_shards(random, *backend, head_dim, plain, [&](const tensor::SumShards& shards) {
        return backend->pack_sharded_codes(tensor::column_slice(storage.view(), shards.owned()), shards);
      });
    }
    const W8Storage small = tensor::quantize_w8(HostMatrix(random.normal(out * in), DType::kF32, out, in).tensor());
    check_shards(random, *backend, head_dim, rounded(tensor::dequantize(small.view()), out, in),
                 [&](const tensor::SumShards& shards) {
                   return backend->pack_sharded_w8(tensor::column_slice(small.view(), shards.owned()).matrix,
                                                   W8Activations::kUnquantized, shards);
                 });
    const RandomFp8 fp8(random, out, in, 128, 128);
    check_shards(random, *backend, head_dim, rounded(tensor::decode(fp8.matrix), out, in),
                 [&](const tensor::SumShards& shards) {
                   return backend->pack_sharded_fp8(tensor::column_slice(fp8.matrix, shards.owned()), shards);
                 });
  }
}

TEST_CASE("coded experts of other formats than the first are refused") {
  const auto backend = make_coding_backend();
  Random random(test_seed() + 315);
  const CodeStorage bf16_scales = random_codes(random, 64, 64, code_layout("w4"));
  const CodeStorage f16_scales = random_codes(random, 64, 64, code_layout("w4a16 of 128"));
  const auto packer =
      backend->pack_experts(2, {.routing = {.experts_per_row = 1}, .activation = {}, .has_biases = false}, {});
  packer->add_codes(bf16_scales.view(), bf16_scales.view(), bf16_scales.view());
  REQUIRE_THROWS_AS(packer->add_codes(f16_scales.view(), f16_scales.view(), f16_scales.view()), std::runtime_error);
}

TEST_CASE("a NaN scale of 4-bit weights makes its outputs NaN on a GPU") {
  const auto backend = make_coding_backend();
  Values weights(70 * 64, 1.0f);
  weights[5 * 64 + 3] = std::numeric_limits<float>::infinity();
  const CodeStorage storage = tensor::quantize_w4(HostMatrix(weights, DType::kF32, 70, 64).tensor());
  const CodeMatrix matrix = storage.view();
  const auto weight = backend->pack_codes({&matrix, 1});
  for (const size_t rows : {1, 40}) {
    const Values got = multiply(*backend, *weight, false, Values(rows * 64, 1.0f));
    for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::isnan(got[i]) == (i % 70 == 5));
  }
}
