#include "sched/scheduler/preemptor.h"

#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

SchedulerOptions scarce_options(uint32_t page_count) {
  auto options = small_options();
  options.page_count = page_count;
  options.context_length = 4 * page_count;
  options.new_token_ratio = 0;
  options.policy = QueuePolicy::kPriority;
  return options;
}

}  // namespace

TEST_CASE("a free page is taken from nobody") {
  SchedulerParts parts(scarce_options(8));
  Sequence& one = parts.start(1, 4);
  Sequence& other = parts.start(2, 4);
  parts.begin_turn();
  REQUIRE(parts.preemptor.reserve_page(one));
  REQUIRE(one.page_table.pages.size() == 2);
  REQUIRE(other.running);
  REQUIRE(parts.preemptor.retraction_count() == 0);
}

TEST_CASE("without a free page the lowest rank goes back") {
  SchedulerParts parts(scarce_options(8));
  const bool is_older_lower = GENERATE(true, false);
  Sequence& older = parts.start(1, 4, 10, is_older_lower ? 0 : 1);
  Sequence& younger = parts.start(2, 4, 10, 1);
  Sequence& requester = parts.start(3, 4, 10, 1);
  parts.exhaust_pages(younger);
  parts.begin_turn();
  REQUIRE(parts.preemptor.reserve_page(requester) == is_older_lower);
  REQUIRE(older.running == !is_older_lower);
  REQUIRE(younger.running);
  // Nobody admitted before it gives way to it, so that without a smaller priority it goes back itself.
  REQUIRE(requester.running == is_older_lower);
  REQUIRE(parts.preemptor.retraction_count() == 1);
  REQUIRE(parts.state.waiting.size() == 1);
  parts.state.check_invariants();
}

TEST_CASE("a sequence in flight is waited for") {
  SchedulerParts parts(scarce_options(4));
  Sequence& requester = parts.start(1, 4);
  Sequence& other = parts.add(2, 4);
  (void)parts.run(other);  // its token has not come back
  parts.exhaust_pages(other);
  parts.begin_turn();
  REQUIRE_FALSE(parts.preemptor.reserve_page(requester));
  REQUIRE(requester.running);
  REQUIRE(other.running);
  (void)parts.answer();
  REQUIRE(parts.preemptor.reserve_page(requester));
  REQUIRE_FALSE(other.running);
}

TEST_CASE("victims give way to a priority only if that suffices") {
  auto options = scarce_options(8);
  options.context_length = 32;
  SchedulerParts parts(options);
  Sequence& low = parts.start(1, 8, 10, 0);
  Sequence& lowest = parts.start(2, 8, 10, -1);
  Sequence& equal = parts.start(3, 8, 10, 5);
  SECTION("one victim is enough") {
    (void)parts.add(4, 8, 10, 5);  // 2 pages and one for each that runs
    parts.preemptor.make_room_for_next();
    REQUIRE_FALSE(lowest.running);
    REQUIRE(lowest.bypasses == 1);
    REQUIRE(parts.preemptor.retraction_count() == (low.running ? 1 : 2));
  }
  SECTION("all victims are not enough") {
    (void)parts.add(4, 28, 4, 5);  // 7 pages, where the equal one keeps 2 of 8
    parts.preemptor.make_room_for_next();
    REQUIRE(low.running);
    REQUIRE(lowest.running);
    REQUIRE(parts.preemptor.retraction_count() == 0);
  }
  REQUIRE(equal.running);
  parts.state.check_invariants();
}

TEST_CASE("other policies preempt nobody") {
  auto options = scarce_options(8);
  options.policy = QueuePolicy::kShortest;
  options.max_running = 1;
  SchedulerParts parts(options);
  Sequence& running = parts.start(1, 8, 10, 0);
  (void)parts.add(2, 1, 1, 5);
  parts.preemptor.make_room_for_next();
  REQUIRE(running.running);
}
