#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "conformance/multiply.h"
#include "conformance/random_codes.h"
#include "cuda/cuda_backend.h"
#include "cuda_backend/tested_gemm.h"

/// Comparisons of weights of 4 and 8 bits with their values in bf16.
namespace millrace::test {

inline std::unique_ptr<tensor::Backend> make_coding_backend() {
  return cuda::make_backend({.products = tested_gemm()});
}

/// Returns weights rounded to bf16.
inline HostMatrix rounded(const Values& weights, int64_t rows, int64_t cols) {
  return {reference::rounded(weights, tensor::DType::kBF16), tensor::DType::kBF16, rows, cols};
}

inline bool same_bits(const Values& got, const Values& wanted) {
  return got.size() == wanted.size() && std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) == 0;
}

/// Fails unless both weights give the same bits for all kinds of tiles.
inline void check_same(Random& random, tensor::Backend& backend, const tensor::PackedWeight& coded,
                       const tensor::PackedWeight& plain, bool gate_up) {
  for (const int64_t rows : {int64_t{1}, int64_t{9}, int64_t{17}, int64_t{40}, int64_t{70}, random.integer(1, 130)}) {
    INFO(rows << " rows of " << coded.in_features() << " to " << coded.out_features() << ", gate-up " << gate_up);
    const Values x = reference::rounded(random.normal(rows * coded.in_features()), tensor::DType::kBF16);
    const bool same = same_bits(multiply(backend, coded, gate_up, x), multiply(backend, plain, gate_up, x));
    REQUIRE(same);
  }
}

/// Returns the weights of parts that are packed one above the other.
inline Values dequantized(std::span<const tensor::CodeMatrix> parts) {
  Values weights;
  for (const tensor::CodeMatrix& part : parts) {
    const Values values = reference::to_floats(part);
    weights.insert(weights.end(), values.begin(), values.end());
  }
  return weights;
}

/// Returns the kind of that name.
inline CodeLayout code_layout(std::string_view name) {
  for (const std::span<const CodeLayout> kinds :
       {std::span<const CodeLayout>(kCodeLayouts), std::span<const CodeLayout>(kByteKinds)}) {
    const auto found = std::ranges::find(kinds, name, &CodeLayout::name);
    if (found != kinds.end()) return *found;
  }
  FAIL("no kind of codes is named " << name);
  return {};
}

/// Returns all kinds of codes that a GPU packs.
inline std::vector<CodeLayout> all_code_layouts() {
  std::vector<CodeLayout> kinds(std::begin(kCodeLayouts), std::end(kCodeLayouts));
  std::ranges::copy_if(kByteKinds, std::back_inserter(kinds),
                       [](const CodeLayout& kind) { return !kind.has_half_minimums; });
  return kinds;
}

}  // namespace millrace::test
