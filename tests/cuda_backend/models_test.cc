// Whole models through the CUDA backend and its ops, both run on the host. How good they are on all that is known of
// each family, golden_test.cc says, over plain loops and on a GPU.

#include <catch2/catch.hpp>

#include "cuda_backend/families.h"

using namespace millrace;

namespace {

/// Of a prompt and its continuation: each costs 10 to 100 ms.
constexpr size_t kMostTokens = 40;

}  // namespace

TEST_CASE("the CUDA ops compute every family near the reference") {
  test::GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::golden_family_names())));
  std::erase_if(family.prompts, [](const auto& prompt) { return prompt.sequence().size() > kMostTokens; });
  REQUIRE_FALSE(family.prompts.empty());
  test::require_agreement(family);
}
