#pragma once

#include <cstdlib>
#include <string>

#include "cuda/cuda_backend.h"

namespace millrace::test {

/// What tests that also run on a GPU multiply by: MILLRACE_TEST_PRODUCTS, auto where nothing is said.
inline cuda::ProductChoice tested_products() {
  const char* given = std::getenv("MILLRACE_TEST_PRODUCTS");
  const std::string name = given == nullptr ? "auto" : given;
  if (name == "wgmma") return cuda::ProductChoice::kWgmma;
  return name == "mma" ? cuda::ProductChoice::kMma : cuda::ProductChoice::kAuto;
}

}  // namespace millrace::test
