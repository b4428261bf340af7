#include "sched/scheduler/scheduler_state.h"

#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

TEST_CASE("pages are counted from the tokens that they hold") {
  const SchedulerState state(small_options());
  REQUIRE(state.pages_for(0) == 0);
  REQUIRE(state.pages_for(4) == 1);
  REQUIRE(state.pages_for(5) == 2);
}

TEST_CASE("a released sequence leaves slot and pages") {
  SchedulerParts parts(small_options());
  Sequence& sequence = parts.start(1, 9);
  const SlotId slot = sequence.slot;
  parts.state.release(sequence);
  REQUIRE(parts.state.free_slots.back() == slot);
  REQUIRE(parts.state.closed_slots == std::vector{slot});
  REQUIRE(parts.state.running.empty());
  REQUIRE(sequence.page_table.pages.empty());
  REQUIRE(sequence.scheduled == 0);
  REQUIRE(parts.state.cache.available_pages() == 32);
  REQUIRE(parts.state.cache.cached_pages() == 2);
  parts.state.release(sequence);  // does nothing twice
  REQUIRE(parts.state.free_slots.size() == 8);
}

TEST_CASE("removing ends waiting and running sequences") {
  SchedulerParts parts(small_options());
  Sequence& running = parts.start(1, 4);
  Sequence& waiting = parts.add(2, 4);
  REQUIRE(parts.state.find(SequenceId(3)) == nullptr);
  parts.state.remove(running);
  parts.state.remove(waiting);
  REQUIRE(parts.state.find(SequenceId(1)) == nullptr);
  REQUIRE(parts.state.sequences.empty());
  REQUIRE(parts.state.waiting.empty());
  parts.state.check_invariants();
}

TEST_CASE("without the ring nothing runs and nothing is in flight") {
  SchedulerParts parts(small_options());
  Sequence& second = parts.add(2, 4);
  Sequence& first = parts.add(1, 4);
  Sequence& retracted = parts.add(3, 4);
  (void)parts.run(second);
  (void)parts.answer();
  parts.begin_turn();
  REQUIRE(parts.admission.admit(first, 1));
  REQUIRE(parts.admission.admit(retracted, 1));
  parts.builder.add_slice(first, 4);
  parts.builder.add_slice(retracted, 4);
  (void)parts.builder.take();
  parts.queue.put_back(retracted);
  REQUIRE(parts.state.forget_ring() == std::vector{SequenceId(1), SequenceId(2)});
  REQUIRE(parts.state.waiting == std::deque{&retracted});
  REQUIRE(retracted.in_flight == 0);
  REQUIRE(parts.state.in_flight.empty());
  REQUIRE(parts.state.closed_slots.empty());
  REQUIRE(parts.state.plan_count == 0);
  parts.state.check_invariants();
}

TEST_CASE("smaller pools end waiting sequences that do not fit") {
  SchedulerParts parts(small_options());
  (void)parts.add(4, 24);
  (void)parts.add(3, 20);
  Sequence& fits = parts.add(2, 19);
  Sequence& scored = parts.add(1, 20, 0);  // samples nothing
  REQUIRE(parts.state.resize({.device = 5}) == std::vector{SequenceId(3), SequenceId(4)});
  REQUIRE(parts.state.waiting == std::deque{&fits, &scored});
  REQUIRE(parts.state.options.context_length == 20);
  REQUIRE(parts.state.cache.page_count() == 5);
  REQUIRE(parts.state.cache.available_pages() == 5);
  parts.state.check_invariants();
  // The context grows back to what it was, and no further.
  REQUIRE(parts.state.resize({.device = 100}).empty());
  REQUIRE(parts.state.options.context_length == 64);
  parts.state.check_invariants();
  (void)parts.run(fits);
  parts.state.check_invariants();
}
