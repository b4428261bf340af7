// Whole models on the CUDA backend, its kernels replaced by plain loops.

#include <catch2/catch.hpp>

#include "cuda_backend/families.h"

using namespace millrace;

TEST_CASE("CUDA logits and logprobs are near those of the reference") {
  const test::GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::golden_family_names())));
  test::require_agreement(family);
}
