#pragma once

#include <cstdlib>
#include <string>

#include "cuda/cuda_backend.h"

namespace millrace::test {

/// Returns the instruction for tests that also run on a GPU: MILLRACE_TEST_PRODUCTS, by default auto.
inline cuda::GemmChoice tested_gemm() {
  const char* given = std::getenv("MILLRACE_TEST_PRODUCTS");
  const std::string name = given == nullptr ? "auto" : given;
  if (name == "wgmma") return cuda::GemmChoice::kWgmma;
  return name == "mma" ? cuda::GemmChoice::kMma : cuda::GemmChoice::kAuto;
}

}  // namespace millrace::test
