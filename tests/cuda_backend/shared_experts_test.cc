// Rings that share experts, on one GPU: over plain loops, over the emulated ops, or on a device.

#include <chrono>
#include <thread>

#include "cuda_backend/sharing_rings.h"
#include "model/rank_layout.h"
#include "support/effort.h"
#include "support/mentions.h"

using namespace millrace;
using namespace std::chrono_literals;

namespace {

uint64_t count_of(test::TestPipeline& ring, tensor::GraphOutcome outcome) {
  return ring.stage(0).graph_stats()->counts()[static_cast<size_t>(outcome)];
}

}  // namespace

TEST_CASE("rings that share experts on a GPU change no bit") {
  const test::SharedFamily family(GENERATE(
      from_range(test::drawn_from<std::string>({"qwen3moe", "mixtral", "gpt_oss", "qwen2moe", "deepseek-v2-lite"}))));
  const test::Logits wanted = family.wanted();
  const auto shapes = test::drawn_from<test::SharingRings::Shape>({{.ring_count = 2, .rank_count = 1, .stage_count = 2},
                                                                   {.ring_count = 2, .rank_count = 2},
                                                                   {.ring_count = 4, .rank_count = 1},
                                                                   {.ring_count = 4, .rank_count = 2}});
  for (const auto& shape : shapes) {
    CAPTURE(family.config.architecture, shape.ring_count, shape.rank_count, shape.stage_count);
    if (model::check_ranks(family.config, shape.rank_count).has_error() ||
        model::check_shared_experts(family.config, shape.ring_count, shape.rank_count).has_error())
      continue;
    test::SharingRings rings(*family.checkpoint, family.config, shape);
    REQUIRE(test::same_bits(rings.logits(family.sequences, 13), wanted));
    // The last row of ring 0 comes alone, as in a decode step, while ring 1 has none.
    REQUIRE(test::same_bits(rings.logits(family.sequences, family.sequences[0].size() - 1), wanted));
    REQUIRE(count_of(rings.ring(0), tensor::GraphOutcome::kOff) > 0);
    REQUIRE(count_of(rings.ring(0), tensor::GraphOutcome::kNew) == 0);
  }
}

TEST_CASE("rings on a GPU end together and share experts again") {
  const test::SharedFamily family("qwen3moe", 1);
  const test::Logits wanted = family.wanted();
  test::SharingRings rings(*family.checkpoint, family.config, {.ring_count = 2, .stage_count = 2});
  for (const bool has_begun : {false, true}) {
    const auto experts = rings.share();
    std::thread ender([&] {
      // Ring 0 waits in its first step, or in one of the layers of a later one.
      if (has_begun) rings.ring(1).step_without_rows();
      std::this_thread::sleep_for(5ms);
      experts->abort(1, "the power is off");
    });
    std::exception_ptr failure;
    rings.ring(0).start({static_cast<int32_t>(family.sequences[0].size())}, 1);
    try {
      for (int32_t at = 0; at < 2; ++at)
        (void)rings.ring(0).run({{.tokens = {family.sequences[0][static_cast<size_t>(at)]}, .prefix = at}});
    } catch (...) {
      failure = std::current_exception();
    }
    ender.join();
    REQUIRE_THAT(test::failure_text(failure), test::Mentions("ring 1: the power is off"));
  }
  (void)rings.share();
  REQUIRE(test::same_bits(rings.logits(family.sequences, 9), wanted));
}
