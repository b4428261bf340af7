#include "sched/scheduler/admission_controller.h"

#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

TEST_CASE("a sequence alone needs its own pages only") {
  SchedulerParts parts(small_options());
  Sequence& candidate = parts.add(1, 9, 40);
  REQUIRE(parts.admission.pages_needed(candidate, {}) == 3);
  REQUIRE(parts.admission.has_room(candidate));
}

TEST_CASE("with others running there must be pages for expected tokens") {
  auto options = small_options();
  options.new_token_ratio = 0.5;
  SchedulerParts parts(options);
  Sequence& running = parts.start(1, 8, 41);
  Sequence& candidate = parts.add(2, 8, 40);
  Sequence* others[] = {&running};
  // Its own 2, half of 40 + 40 tokens in pages of 4, and one for the other's page that is not full.
  REQUIRE(parts.admission.pages_needed(candidate, others) == 2 + 10 + 1);
  for (int plan = 0; plan < 1000; ++plan) parts.admission.on_plan();
  REQUIRE(parts.admission.pages_needed(candidate, others) == 2 + 2 + 1);
  parts.admission.on_retraction();
  REQUIRE(parts.admission.pages_needed(candidate, others) == 2 + 10 + 1);
}

TEST_CASE("cached pages of others count as room but not twice") {
  auto options = small_options();
  options.page_count = 16;
  options.new_token_ratio = 0;
  SchedulerParts parts(options);
  (void)parts.start(1, 40, 2);  // 10 pages, 10 of them full
  parts.state.remove(*parts.state.find(SequenceId(1)));
  REQUIRE(parts.state.cache.available_pages() == 16);
  Sequence& same = parts.add(3, 4);
  same.tokens.assign(41, 1);
  REQUIRE(parts.admission.pages_needed(same, {}) == 1);
  REQUIRE(parts.admission.has_room(same));
  (void)parts.start(2, 21, 40);  // takes the 6 pages that are not cached
  REQUIRE(parts.state.cache.available_pages() == 10);
  REQUIRE(parts.queue.match(same).device_pages == 10);
  // It wants one more page than the ten that it shares, and one for the other; the ten are no room for those.
  REQUIRE_FALSE(parts.admission.has_room(same));
}

TEST_CASE("as many have room together as are admitted in turn") {
  auto options = small_options();
  options.page_count = GENERATE(16u, 18u, 24u, 32u);
  options.new_token_ratio = GENERATE(0.0, 0.3);
  const bool has_cached_prefix = GENERATE(false, true);
  SchedulerParts parts(options);
  if (has_cached_prefix) {
    (void)parts.start(1, 24, 2);
    parts.state.remove(*parts.state.find(SequenceId(1)));
  }
  std::vector<Sequence*> candidates;
  for (uint64_t id = 2; id < 12; ++id) {
    candidates.push_back(&parts.add(id, 4));
    candidates.back()->tokens.assign(26, 1);  // all alike
    candidates.back()->prompt_length = 26;
  }
  const size_t predicted = parts.admission.count_with_room(candidates);
  parts.begin_turn();
  size_t admitted = 0;
  while (admitted < candidates.size() && parts.admission.admit(*candidates[admitted], 1)) ++admitted;
  REQUIRE(predicted == admitted);
  REQUIRE(predicted > 0);
}

TEST_CASE("admission opens the sequence behind its cached prefix") {
  SchedulerParts parts(small_options());
  (void)parts.start(1, 9);
  Sequence& candidate = parts.add(2, 11);
  candidate.tokens.assign(11, 1);
  parts.begin_turn();
  REQUIRE(parts.admission.has_room_for_next());
  REQUIRE(parts.admission.admit(candidate, 1));
  REQUIRE(candidate.running);
  REQUIRE(candidate.scheduled == 8);
  REQUIRE(candidate.cached_tokens == 8u);
  REQUIRE(candidate.page_table.pages.size() == 3);
  REQUIRE(parts.state.waiting.empty());
  REQUIRE_FALSE(parts.admission.has_room_for_next());
  parts.builder.add_slice(candidate, 3);
  const Plan plan = parts.builder.take();
  REQUIRE(plan.opens.size() == 1);
  REQUIRE(plan.opens[0].cached_length == 8);
  parts.state.check_invariants();
}

TEST_CASE("nothing happens without a slot or pages") {
  auto options = small_options();
  options.max_running = GENERATE(1u, 2u);
  options.page_count = options.max_running == 1 ? 32 : 16;
  SchedulerParts parts(options);
  (void)parts.start(1, 20, 40);
  Sequence& candidate = parts.add(2, 40, 20);
  parts.begin_turn();
  REQUIRE_FALSE(parts.admission.admit(candidate, 1));
  REQUIRE_FALSE(candidate.running);
  REQUIRE(parts.state.waiting.size() == 1);
  parts.state.check_invariants();
}

TEST_CASE("admission keeps room in window groups") {
  auto options = small_options();
  options.page_count = 60;
  options.windows = {{.window = 8}};
  options.expected_tokens = 10'000;
  SchedulerParts parts(options);
  const auto& window = *parts.state.cache.windows()[0];
  // A plan takes 4 of 16 pages for prompts; each sequence keeps 3 and may need one more.
  REQUIRE(window.account().pool().page_count() == 16);
  for (uint64_t id = 1; id <= 3; ++id) (void)parts.start(id, 12);
  Sequence& candidate = parts.add(4, 12);
  parts.begin_turn();
  REQUIRE_FALSE(parts.admission.has_room_for_next());
  REQUIRE_FALSE(parts.admission.admit(candidate, 12));
  Sequence* const candidates[] = {&candidate};
  REQUIRE(parts.admission.count_with_room(candidates) == 0);
  parts.state.remove(*parts.state.find(SequenceId(1)));
  REQUIRE(parts.admission.count_with_room(candidates) == 1);
  REQUIRE(parts.admission.admit(candidate, 12));
  parts.builder.add_slice(candidate, 12);
  const Plan plan = parts.builder.take();
  REQUIRE(plan.windows.size() == 1);
  REQUIRE(plan.windows[0].counts == std::vector<uint32_t>{3});
  REQUIRE(candidate.page_table.windows[0].first == 1);  // the next token sees 5 to 12
  parts.state.check_invariants();
}

TEST_CASE("an admission bypasses begun prompts of smaller priority") {
  auto options = small_options();
  options.policy = GENERATE(QueuePolicy::kPriority, QueuePolicy::kFcfs);
  SchedulerParts parts(options);
  Sequence& begun = parts.add(1, 20);
  parts.begin_turn();
  REQUIRE(parts.admission.admit(begun, 1));
  parts.builder.add_slice(begun, 4);
  Sequence& candidate = parts.add(2, 4, 10, 1);
  REQUIRE(parts.admission.admit(candidate, 1));
  REQUIRE(begun.bypasses == (options.policy == QueuePolicy::kPriority ? 1 : 0));
}
