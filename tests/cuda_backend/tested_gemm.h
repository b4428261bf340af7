#pragma once

#include <cstdlib>
#include <string>

#include "cuda/cuda_backend.h"

namespace millrace::test {

/// What tests that also run on a GPU multiply by: MILLRACE_TEST_PRODUCTS, auto where nothing is said.
inline cuda::GemmChoice tested_gemm() {
  const char* given = std::getenv("MILLRACE_TEST_PRODUCTS");
  const std::string name = given == nullptr ? "auto" : given;
  if (name == "wgmma") return cuda::GemmChoice::kWgmma;
  return name == "mma" ? cuda::GemmChoice::kMma : cuda::GemmChoice::kAuto;
}

}  // namespace millrace::test
