#include "sched/scheduler/prefill_planner.h"

#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

/// Plans prefill alone and returns (sequence, tokens) of its chunks.
std::vector<std::pair<uint64_t, uint32_t>> prefill(SchedulerParts& parts) {
  parts.begin_turn();
  parts.prefills.plan();
  if (parts.builder.slices().empty()) return {};
  (void)parts.builder.take();
  const InFlightPlan& plan = parts.state.in_flight.back();
  std::vector<std::pair<uint64_t, uint32_t>> chunks;
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    chunks.emplace_back(plan.sequences[i].value(), plan.slices[i].token_count);
  }
  (void)parts.answer();
  parts.state.check_invariants();
  return chunks;
}

using Chunks = std::vector<std::pair<uint64_t, uint32_t>>;

}  // namespace

TEST_CASE("prompts fill the budget in order and are cut at its end") {
  SchedulerParts parts(small_options());
  (void)parts.add(1, 7);
  (void)parts.add(2, 20);
  (void)parts.add(3, 9);
  REQUIRE(prefill(parts) == Chunks{{1, 7}, {2, 9}});
  REQUIRE(prefill(parts) == Chunks{{2, 11}, {3, 5}});
  REQUIRE(prefill(parts) == Chunks{{3, 4}});
  REQUIRE(prefill(parts).empty());
}

TEST_CASE("short prompts ride along in a quarter of the budget") {
  SchedulerParts parts(small_options());
  (void)parts.add(1, 50);
  REQUIRE(prefill(parts) == Chunks{{1, 16}});
  Sequence& medium = parts.add(2, 5);
  (void)parts.add(3, 3);
  (void)parts.add(4, 2);  // with the three of the other more than four
  (void)parts.add(5, 1);
  REQUIRE(prefill(parts) == Chunks{{3, 3}, {5, 1}, {1, 12}});
  REQUIRE(medium.bypasses == 2);
}

TEST_CASE("nobody is bypassed without end") {
  SchedulerParts parts(small_options());
  (void)parts.add(1, 60);
  REQUIRE(prefill(parts) == Chunks{{1, 16}});
  Sequence& medium = parts.add(2, 5);
  (void)parts.add(3, 3);
  medium.bypasses = kMaxBypasses;
  REQUIRE(prefill(parts) == Chunks{{1, 16}});
}

TEST_CASE("a retracted sequence waits for its slices in flight") {
  SchedulerParts parts(small_options());
  Sequence& sequence = parts.add(1, 9);
  (void)parts.run(sequence);
  parts.queue.put_back(sequence);
  parts.begin_turn();
  parts.prefills.plan();
  REQUIRE(parts.builder.slices().empty());
  (void)parts.answer();
  REQUIRE(prefill(parts) == Chunks{{1, 2}});  // its full pages are cached
}

TEST_CASE("a larger priority begins before the next chunk of a smaller") {
  auto options = small_options();
  options.policy = GENERATE(QueuePolicy::kPriority, QueuePolicy::kFcfs);
  SchedulerParts parts(options);
  (void)parts.add(1, 40);
  REQUIRE(prefill(parts) == Chunks{{1, 16}});
  (void)parts.add(2, 10, 10, 1);
  const bool preferred = options.policy == QueuePolicy::kPriority;
  REQUIRE(prefill(parts) == (preferred ? Chunks{{2, 10}, {1, 6}} : Chunks{{1, 16}}));
}

TEST_CASE("equal chunks are cut once costs are known") {
  auto options = small_options();
  options.chunking = Chunking::kBalanced;
  options.chunked_prefill_size = 256;
  options.page_count = 256;
  options.context_length = 1024;
  SchedulerParts parts(options);
  (void)parts.add(1, 1000);
  REQUIRE(prefill(parts) == Chunks{{1, 256}});
  parts.state.remove(*parts.state.find(SequenceId(1)));
  // Decode steps take half of the time that a chunk of 256 takes.
  for (uint32_t i = 1; i <= 16; ++i) {
    parts.chunker.observe(StageId(0), {.prefill_tokens = 16.0 * i}, 160.0 * i);
    parts.chunker.observe(StageId(0), {.decode_count = 1.0 * i}, 1280.0 * i);
  }
  REQUIRE(parts.chunker.is_balanced());
  Sequence& decoding = parts.start(2, 3);
  (void)parts.add(3, 1000);
  parts.begin_turn();
  parts.builder.add_slice(decoding, 1);
  parts.prefills.plan();
  REQUIRE(parts.builder.slices().size() == 2);
  REQUIRE(parts.builder.slices()[1].token_count == 128);
}
