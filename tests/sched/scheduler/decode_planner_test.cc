#include "sched/scheduler/decode_planner.h"

#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

/// Plans decode steps alone and returns the sequences that got one.
std::vector<uint64_t> decode(SchedulerParts& parts) {
  parts.begin_turn();
  parts.decodes.plan();
  if (parts.builder.slices().empty()) return {};
  (void)parts.builder.take();
  std::vector<uint64_t> ids;
  for (const SequenceId id : parts.state.in_flight.back().sequences) ids.push_back(id.value());
  return ids;
}

}  // namespace

TEST_CASE("unknown costs spread decode steps over the window") {
  SchedulerParts parts(small_options());
  for (uint64_t id = 1; id <= 5; ++id) (void)parts.start(id, 3);
  REQUIRE(decode(parts) == std::vector<uint64_t>{1, 2, 3});
  REQUIRE(decode(parts) == std::vector<uint64_t>{4, 5});
  REQUIRE(decode(parts).empty());
  (void)parts.answer();
  REQUIRE(decode(parts) == std::vector<uint64_t>{1, 2, 3});
  parts.state.check_invariants();
}

TEST_CASE("who has waited longest decodes first") {
  SchedulerParts parts(small_options());
  for (uint64_t id = 1; id <= 4; ++id) (void)parts.start(id, 3);
  REQUIRE(decode(parts) == std::vector<uint64_t>{1, 2});
  (void)parts.answer();
  REQUIRE(decode(parts) == std::vector<uint64_t>{3, 4});
  (void)parts.answer();
  REQUIRE(decode(parts) == std::vector<uint64_t>{1, 2});
}

TEST_CASE("without spreading a plan takes all that are ready") {
  auto options = small_options();
  options.spread_decodes = false;
  SchedulerParts parts(options);
  for (uint64_t id = 1; id <= 3; ++id) (void)parts.start(id, 3);
  REQUIRE(decode(parts) == std::vector<uint64_t>{1, 2, 3});
  REQUIRE(decode(parts).empty());
}

TEST_CASE("a full window takes decode steps along with prefill only") {
  auto options = small_options();
  options.window = 1;
  SchedulerParts parts(options);
  (void)parts.start(1, 3);
  (void)parts.start(2, 3);
  (void)parts.run(parts.add(3, 3));  // fills the window
  REQUIRE(decode(parts).empty());
  (void)parts.add(4, 3);  // could be admitted
  REQUIRE(decode(parts) == std::vector<uint64_t>{1, 2});
}

TEST_CASE("known costs choose fewer plans than the window") {
  auto options = small_options();
  options.window = 4;
  SchedulerParts parts(options);
  // The one stage reads its weights for 1000 us: two plans on it would only wait for each other.
  for (uint32_t rows = 1; rows <= 8; ++rows) {
    for (int i = 0; i < 4; ++i) {
      parts.chunker.observe(StageId(0), {.decode_count = static_cast<double>(rows)}, 1000 + rows);
      parts.chunker.observe(StageId(0), {.prefill_tokens = 10.0 * rows}, 1000 + 100 * rows);
    }
  }
  REQUIRE(parts.costs.costs().usable());
  for (uint64_t id = 1; id <= 4; ++id) (void)parts.start(id, 3);
  REQUIRE(decode(parts) == std::vector<uint64_t>{1, 2, 3, 4});
  (void)parts.answer();
  // Two plans fit into a round while one of them is on its way for as long as a run.
  parts.decodes.set_transit(1005);
  REQUIRE(decode(parts) == std::vector<uint64_t>{1, 2});
}

TEST_CASE("a step takes drafts as far as pages are free") {
  auto options = small_options();
  options.page_count = 4;
  options.context_length = 16;
  options.draft_tokens = 8;
  options.new_token_ratio = 0;
  SchedulerParts parts(options);
  const auto start = [&](uint64_t id) {
    GenerateRequest request;
    request.prompt = {1, 2};
    request.prediction = {9, 9, 9, 9, 9, 9, 9};
    parts.queue.add(SequenceId(id), std::move(request));
    (void)parts.run(*parts.state.find(SequenceId(id)));
    (void)parts.answer();
  };
  start(1);
  start(2);
  parts.exhaust_pages(*parts.state.find(SequenceId(2)));
  REQUIRE(decode(parts) == std::vector<uint64_t>{1});
  const PlanSlice& slice = parts.state.in_flight.back().slices[0];
  REQUIRE(slice.draft_count == 1);  // the page has room for the token and one draft
  REQUIRE(parts.preemptor.retraction_count() == 0);
  REQUIRE(parts.answer()[0].event.tokens == std::vector<TokenId>{9, 9});
}

TEST_CASE("a sequence retracted for another gets no step") {
  auto options = small_options();
  options.page_count = 4;
  options.context_length = 16;
  options.window = 1;
  options.new_token_ratio = 0;
  SchedulerParts parts(options);
  Sequence& first = parts.start(1, 4);
  Sequence& second = parts.start(2, 4);
  parts.exhaust_pages(second);
  REQUIRE(decode(parts) == std::vector<uint64_t>{1});
  REQUIRE(first.running);
  REQUIRE_FALSE(second.running);
}
