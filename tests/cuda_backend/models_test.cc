// Whole models through the CUDA backend and its ops, both run on the host. How good they are on all that is known of
// each family, golden_test.cc says, over plain loops and on a GPU.

#include <catch2/catch.hpp>

#include "cuda/cuda_backend.h"
#include "golden_test/agreement.h"

using namespace millrace;

namespace {

/// Of a prompt and its continuation: each costs 10 to 100 ms.
constexpr size_t kMostTokens = 40;

}  // namespace

TEST_CASE("the CUDA ops compute every family near the reference") {
  test::GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::golden_family_names())));
  std::erase_if(family.prompts, [](const auto& prompt) { return prompt.sequence().size() > kMostTokens; });
  REQUIRE_FALSE(family.prompts.empty());
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = model::read_config(family.folder).value();
  const int32_t stages = GENERATE(1, 2, 4);
  const auto backend = cuda::make_backend({});
  test::TestPipeline pipeline(*checkpoint, config, *backend, {.stage_count = stages});
  const test::Agreement agreement = test::measure_agreement(pipeline, family, 2.0 * family.tolerance.bf16_max);
  CAPTURE(family.name, stages, agreement.logprob_max, agreement.greedy_checked);
  REQUIRE(agreement.logits.max() <= family.tolerance.bf16_max);
  REQUIRE(agreement.logits.rms() <= family.tolerance.bf16_rms);
  REQUIRE(agreement.logits.kl() <= family.tolerance.bf16_kl);
  REQUIRE(agreement.logprob_max <= family.tolerance.bf16_max);
  REQUIRE(agreement.greedy_wrong == 0);
}
