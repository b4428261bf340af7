#pragma once

#include <vector>

#include "conformance/harness.h"
#include "tensor/fp8.h"

/// Weights in E4M3.
namespace millrace::test {

/// A matrix in E4M3 that owns its codes.
struct Fp8Storage {
  std::vector<std::byte> codes;
  tensor::Fp8Matrix matrix;  ///< of `codes`
};

/// The rows and columns that share a scale; 0: all.
struct Fp8Block {
  int64_t rows = 0;
  int64_t cols = 0;
};

/// Rounds a matrix to the nearest codes. The largest magnitude of a block becomes 448 or a little less.
[[nodiscard]] Fp8Storage rounded_to_fp8(const tensor::HostTensor& matrix, Fp8Block block);

}  // namespace millrace::test
