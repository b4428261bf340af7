// GEMMs of weights and inputs in FP8 on the CUDA backend against the reference, and what rows owe to each other.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "conformance/harness.h"
#include "conformance/multiply.h"
#include "cuda/cuda_backend.h"
#include "cuda_backend/tested_gemm.h"
#include "tensor/fp8.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::Fp8Matrix;

namespace {

constexpr int64_t kStep = 128;

/// Returns a backend that multiplies in FP8; null where the tested GPU cannot.
std::unique_ptr<tensor::Backend> make_fp8_backend() {
  auto backend = cuda::make_backend({.products = tested_gemm(), .fp8_products = cuda::Fp8Products::kOn});
  if (backend->kv_format().find(" fp8") == std::string::npos) return nullptr;
  return backend;
}

/// Random weights in E4M3 in blocks of 128 by 128.
struct Blocks {
  Blocks(Random& random, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows * cols; ++i) {
      const int64_t code = random.integer(0, 255);
      codes.push_back(static_cast<std::byte>((code & 0x7F) == 0x7F ? 1 : code));
    }
    const int64_t column_blocks = (cols + kStep - 1) / kStep;
    matrix = {.name = "blocks",
              .rows = rows,
              .cols = cols,
              .codes = codes.data(),
              .row_bytes = cols,
              .scales = random.normal((rows + kStep - 1) / kStep * column_blocks, 0.01f),
              .column_blocks = column_blocks,
              .block_rows = kStep,
              .block_cols = kStep};
  }
  std::vector<std::byte> codes;
  Fp8Matrix matrix;
};

/// Returns the E4M3 number that is nearest to a value of at most 448.
double nearest_e4m3(double value) {
  int exponent = 0;
  (void)std::frexp(value, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent, -5) - 4);
  return std::clamp(std::nearbyint(value / step) * step, -448.0, 448.0);
}

/// Sums, and the sums of their terms' magnitudes.
struct Sums {
  std::vector<double> values;
  std::vector<double> magnitudes;
};

/// Returns x [rows, cols] times the matrix with inputs in FP8, 128 with one scale.
Sums expected(const Values& x, const Fp8Matrix& matrix) {
  const Values weights = tensor::decode(matrix);
  const auto cols = static_cast<size_t>(matrix.cols);
  Sums sums;
  for (size_t row = 0; row < x.size() / cols; ++row) {
    std::vector<double> inputs;
    for (size_t first = 0; first < cols; first += kStep) {
      float largest = 0.0f;
      for (size_t i = first; i < first + kStep; ++i) largest = std::max(largest, std::abs(x[row * cols + i]));
      const float scale = largest / 448.0f;
      for (size_t i = first; i < first + kStep; ++i) {
        inputs.push_back(scale == 0.0f ? 0.0 : nearest_e4m3(x[row * cols + i] / scale) * static_cast<double>(scale));
      }
    }
    for (size_t feature = 0; feature < static_cast<size_t>(matrix.rows); ++feature) {
      double sum = 0.0;
      double magnitude = 0.0;
      for (size_t i = 0; i < cols; ++i) {
        const double term = inputs[i] * static_cast<double>(weights[feature * cols + i]);
        sum += term;
        magnitude += std::abs(term);
      }
      sums.values.push_back(sum);
      sums.magnitudes.push_back(magnitude);
    }
  }
  return sums;
}

/// Fails unless sums are those expected, but for the few bits of the instruction's sums. Plain loops round both factors
/// to bf16.
void check_sums(const Values& got, const Sums& wanted) {
  REQUIRE(got.size() == wanted.values.size());
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("sum " << i);
    REQUIRE(got[i] == Approx(wanted.values[i]).margin(0x1.1p-8 * wanted.magnitudes[i] + 1e-30));
  }
}

Values random_rows(Random& random, int64_t rows, int64_t cols) {
  return reference::rounded(random.normal(rows * cols), DType::kBF16);
}

/// Fails unless the first rows have the same bits alone as among all.
void check_rows(tensor::Backend& backend, const tensor::PackedWeight& weight, bool gate_up, const Values& x) {
  const Values all = multiply(backend, weight, gate_up, x);
  const auto cols = weight.in_features();
  for (const int64_t rows : {1, 9, 16, 17, 40, 64, 65}) {
    if (rows * cols > static_cast<int64_t>(x.size())) continue;
    INFO(rows << " rows");
    const Values some = multiply(backend, weight, gate_up, Values(x.begin(), x.begin() + rows * cols));
    REQUIRE(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)) == 0);
  }
}

}  // namespace

TEST_CASE("products in FP8 agree with the reference") {
  INFO("seed " << test_seed());
  const auto backend = make_fp8_backend();
  if (backend == nullptr) return;  // the GPU has no wgmma, or the test chose mma
  Random random(test_seed() + 320);
  for (const int64_t in : {128, 384, 1024}) {
    const Blocks first(random, random.integer(1, 200), in);
    const Blocks second(random, random.integer(1, 40), in);
    const std::array parts = {first.matrix, second.matrix};
    const auto weight = backend->pack_fp8(parts);
    for (const int64_t rows : {int64_t{1}, int64_t{16}, random.integer(17, 64), random.integer(65, 150)}) {
      INFO(rows << " rows of " << in);
      const Values x = random_rows(random, rows, in);
      const Values got = multiply(*backend, *weight, false, x);
      const Sums upper = expected(x, parts[0]);
      const Sums lower = expected(x, parts[1]);
      Sums wanted;
      for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        for (const auto& [part, sums] : {std::pair{&parts[0], &upper}, {&parts[1], &lower}}) {
          const auto begin = static_cast<std::ptrdiff_t>(row) * part->rows;
          const auto add = [&](std::vector<double>& to, const std::vector<double>& from) {
            to.insert(to.end(), from.begin() + begin, from.begin() + begin + part->rows);
          };
          add(wanted.values, sums->values);
          add(wanted.magnitudes, sums->magnitudes);
        }
      }
      check_sums(got, wanted);
    }
    check_rows(*backend, *weight, false, random_rows(random, 140, in));
  }
}

TEST_CASE("gated products in FP8 agree with the reference") {
  INFO("seed " << test_seed());
  const auto backend = make_fp8_backend();
  if (backend == nullptr) return;
  Random random(test_seed() + 321);
  const int64_t out = random.integer(30, 150);
  const Blocks gate(random, out, 256);
  const Blocks up(random, out, 256);
  const auto weight = backend->pack_gate_up_fp8(gate.matrix, up.matrix);
  const Values x = random_rows(random, 70, 256);
  const Values got = multiply(*backend, *weight, true, x);
  const Sums gates = expected(x, gate.matrix);
  const Sums ups = expected(x, up.matrix);
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = gates.values[i];
    const double wanted = g / (1.0 + std::exp(-g)) * ups.values[i];
    const double error =
        0x1p-8 * (gates.magnitudes[i] * (std::abs(ups.values[i]) + 1.0) + ups.magnitudes[i] * (std::abs(g) + 1.0));
    REQUIRE(got[i] == Approx(wanted).epsilon(0x1p-7).margin(error));
  }
  check_rows(*backend, *weight, true, x);
}

TEST_CASE("products in FP8 have the same sums on all ranks") {
  INFO("seed " << test_seed());
  const auto backend = make_fp8_backend();
  if (backend == nullptr) return;
  Random random(test_seed() + 322);
  const Blocks blocks(random, 70, 8 * kStep);
  const auto pack = [&](tensor::RankPosition position) {
    const tensor::SumShards shards = tensor::head_shards(8, kStep, position);
    return backend->pack_sharded_fp8(tensor::column_slice(blocks.matrix, shards.owned()), shards);
  };
  const auto whole = pack({0, 1});
  for (const int64_t rows : {3, 70, 260}) {
    const Values x = random_rows(random, rows, 8 * kStep);
    const Values got = multiply(*backend, *whole, false, x);
    check_sums(got, expected(x, blocks.matrix));
    Values sums(got.size(), 0.0f);
    for (const int32_t rank : {0, 1}) {
      Values part;
      for (int64_t row = 0; row < rows; ++row) {
        const auto from = x.begin() + row * 8 * kStep + rank * 4 * kStep;
        part.insert(part.end(), from, from + 4 * kStep);
      }
      const Values own = multiply(*backend, *pack({rank, 2}), false, part);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = rank == 0 ? own[i] : sums[i] + own[i];
    }
    REQUIRE(std::memcmp(sums.data(), got.data(), got.size() * sizeof(float)) == 0);
    check_rows(*backend, *whole, false, x);
  }
}

TEST_CASE("a row in FP8 that is not finite spoils no other row") {
  const auto backend = make_fp8_backend();
  if (backend == nullptr) return;
  Random random(test_seed() + 323);
  const Blocks blocks(random, 90, 256);
  const auto weight = backend->pack_fp8({&blocks.matrix, 1});
  const Values healthy = random_rows(random, 5, 256);
  const Values wanted = multiply(*backend, *weight, false, healthy);
  for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Values x = healthy;
    x[2 * 256 + 200] = value;
    const Values got = multiply(*backend, *weight, false, x);
    for (size_t i = 0; i < got.size(); ++i) {
      INFO("value " << i);
      REQUIRE((i / 90 == 2 ? !std::isfinite(got[i]) : got[i] == wanted[i]));
    }
  }
}

TEST_CASE("weights in FP8 without whole steps keep their inputs") {
  const auto backend = make_fp8_backend();
  if (backend == nullptr) return;
  Random random(test_seed() + 324);
  const Blocks odd(random, 40, 200);
  const HostMatrix plain(reference::rounded(tensor::decode(odd.matrix), DType::kBF16), DType::kBF16, 40, 200);
  const tensor::HostTensor tensor = plain.tensor();
  const Values x = random_rows(random, 20, 200);
  const Values got = multiply(*backend, *backend->pack_fp8({&odd.matrix, 1}), false, x);
  REQUIRE(got == multiply(*backend, *backend->pack({&tensor, 1}), false, x));
}
