#include <catch2/catch.hpp>

#include "sched/scheduler/scheduler.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

SchedulerOptions options_with(QueuePolicy policy, uint32_t max_running) {
  return {.page_size = 4,
          .page_count = 64,
          .max_running = max_running,
          .chunked_prefill_size = 16,
          .context_length = 128,
          .policy = policy};
}

GenerateRequest request(size_t prompt, int32_t priority = 0, uint32_t max_tokens = 1) {
  GenerateRequest made;
  made.prompt.assign(prompt, 1);
  made.max_tokens = max_tokens;
  made.priority = priority;
  return made;
}

/// Offers requests `first` to `last` of 8 prompt tokens and returns those that ended.
std::vector<uint64_t> offer_all(Scheduler& scheduler, uint64_t first, uint64_t last, uint32_t max_queued) {
  std::vector<uint64_t> ended;
  for (uint64_t id = first; id <= last; ++id) {
    if (const auto one = scheduler.offer(SequenceId(id), request(8), max_queued)) ended.push_back(one->value());
  }
  return ended;
}

std::optional<SequenceId> offer(Scheduler& scheduler, uint64_t id, int32_t priority, uint32_t max_queued) {
  return scheduler.offer(SequenceId(id), request(8, priority), max_queued);
}

/// Makes one plan and books its output.
void take_turn(Scheduler& scheduler) {
  const auto plan = scheduler.next();
  REQUIRE(plan.has_value());
  PlanOutput output;
  for (const PlanSlice& slice : plan->slices) {
    output.slices.emplace_back().samples.resize(slice.sample_count(), {.token = 9});
  }
  (void)scheduler.complete(output);
}

}  // namespace

TEST_CASE("requests with a free slot do not count as waiting") {
  const auto policy = GENERATE(QueuePolicy::kFcfs, QueuePolicy::kPriority, QueuePolicy::kShortest, QueuePolicy::kLpm);
  Scheduler scheduler(options_with(policy, 8));
  REQUIRE(offer_all(scheduler, 1, 12, 4).empty());
  REQUIRE(offer_all(scheduler, 13, 14, 4) == std::vector<uint64_t>{13, 14});
  REQUIRE(scheduler.waiting_count() == 12);
  take_turn(scheduler);  // three of the equal prompts fit a plan of 16 tokens, and each ends with its only token
  REQUIRE(scheduler.waiting_count() == 9);
  REQUIRE(offer_all(scheduler, 15, 18, 4) == std::vector<uint64_t>{18});
  scheduler.check_invariants();
}

TEST_CASE("requests without free pages count as waiting") {
  auto options = options_with(QueuePolicy::kFcfs, 8);
  options.page_count = 32;
  options.new_token_ratio = 0;
  Scheduler scheduler(options);
  // Each takes 15 pages, and one for each of the others.
  const auto offer_long = [&](uint64_t id) { return scheduler.offer(SequenceId(id), request(60), 1); };
  for (const uint64_t id : {1, 2, 3}) REQUIRE_FALSE(offer_long(id).has_value());
  REQUIRE(offer_long(4) == SequenceId(4));
  REQUIRE(offer(scheduler, 5, 0, 1) == SequenceId(5));  // short, but behind one that has no pages
}

TEST_CASE("a full queue ends its lowest request for a higher one") {
  Scheduler scheduler(options_with(QueuePolicy::kPriority, 1));
  REQUIRE_FALSE(offer(scheduler, 1, 0, 3).has_value());
  scheduler.check_invariants();
  REQUIRE_FALSE(offer(scheduler, 2, 5, 3).has_value());
  REQUIRE_FALSE(offer(scheduler, 3, 2, 3).has_value());
  REQUIRE_FALSE(offer(scheduler, 4, 2, 3).has_value());
  REQUIRE(offer(scheduler, 5, 0, 3) == SequenceId(5));  // equals the lowest one, which came earlier
  REQUIRE(offer(scheduler, 6, 1, 3) == SequenceId(1));
  REQUIRE(offer(scheduler, 7, 9, 3) == SequenceId(6));
  REQUIRE(offer(scheduler, 8, 9, 3) == SequenceId(4));  // of equal ones the latest
  REQUIRE(scheduler.waiting_count() == 4);
  REQUIRE_FALSE(scheduler.abort(SequenceId(4)));
  scheduler.check_invariants();
}

TEST_CASE("without priorities a full queue refuses the newcomer") {
  const auto policy = GENERATE(QueuePolicy::kFcfs, QueuePolicy::kShortest, QueuePolicy::kLpm);
  Scheduler scheduler(options_with(policy, 1));
  REQUIRE(offer_all(scheduler, 1, 3, 2).empty());
  REQUIRE(scheduler.offer(SequenceId(4), request(1, 9), 2) == SequenceId(4));
  REQUIRE(scheduler.waiting_count() == 3);
}

TEST_CASE("a request that has begun keeps its place in a full queue") {
  auto options = options_with(QueuePolicy::kPriority, 1);
  Scheduler scheduler(options);
  REQUIRE_FALSE(scheduler.offer(SequenceId(1), request(8, 0, 20), 1).has_value());
  take_turn(scheduler);
  REQUIRE(scheduler.running_count() == 1);
  REQUIRE(scheduler.pause(PauseMode::kRetract).empty());
  REQUIRE(scheduler.waiting_count() == 1);
  REQUIRE(offer(scheduler, 2, 5, 1) == SequenceId(2));  // the only other one has begun
  scheduler.resume();
  REQUIRE_FALSE(offer(scheduler, 3, 5, 1).has_value());
  REQUIRE(offer(scheduler, 4, 7, 1) == SequenceId(3));
  REQUIRE(scheduler.waiting_count() == 2);
}

TEST_CASE("during a pause every request waits") {
  Scheduler scheduler(options_with(QueuePolicy::kFcfs, 8));
  REQUIRE(scheduler.pause(PauseMode::kInPlace).empty());
  REQUIRE(offer_all(scheduler, 1, 3, 2) == std::vector<uint64_t>{3});
  scheduler.resume();
  REQUIRE(offer_all(scheduler, 4, 11, 2).empty());
}
