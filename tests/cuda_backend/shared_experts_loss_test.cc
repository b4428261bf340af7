// A GPU that fails in the middle of a step of rings that share experts.

#include <catch2/catch.hpp>

#include "cuda_backend/fake_rig.h"
#include "cuda_backend/sharing_rings.h"
#include "support/effort.h"
#include "support/mentions.h"
#include "support/test_seed.h"

using namespace millrace;

TEST_CASE("a failing call of one ring ends all that share its experts") {
  const test::CleanRuntime runtime;
  const test::SharedFamily family("mixtral");
  const test::Logits wanted = family.wanted();
  test::SharingRings rings(*family.checkpoint, family.config, {.ring_count = 2, .stage_count = 2});
  std::minstd_rand random(static_cast<uint32_t>(test::test_seed()));
  INFO("MILLRACE_TEST_SEED=" << test::test_seed());
  for (uint64_t repetition = test::repetitions(10); repetition > 0; --repetition) {
    emulator::delay_randomly(random(), std::chrono::microseconds(50));
    emulator::fail_call(1 + random() % 100);
    const auto outcome = rings.run(family.sequences, 13);
    const std::array texts = {test::failure_text(outcome.failures[0]), test::failure_text(outcome.failures[1])};
    CAPTURE(texts[0], texts[1]);
    const size_t failed = texts[0].find("too many resources") != std::string::npos ? 0 : 1;
    REQUIRE_THAT(texts[failed], test::Mentions("too many resources"));
    REQUIRE_THAT(texts[1 - failed], test::Mentions(fmt::format("ring {}: a rank has failed", failed)));
    (void)rings.share();
    REQUIRE(test::same_bits(rings.logits(family.sequences, 13), wanted));
  }
}
