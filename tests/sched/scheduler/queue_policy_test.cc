#include "sched/scheduler/queue_policy.h"

#include <catch2/catch.hpp>
#include <array>

#include "sched/scheduler/sequence.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

Sequence waiting(size_t tokens, int32_t priority, uint32_t match_tokens = 0) {
  Sequence sequence;
  sequence.tokens.resize(tokens);
  sequence.request.priority = priority;
  sequence.match_tokens = match_tokens;
  return sequence;
}

}  // namespace

TEST_CASE("each policy compares its own measure") {
  const Sequence large = waiting(100, 1, 90);
  const Sequence small = waiting(20, 5, 4);
  REQUIRE_FALSE(precedes(QueuePolicy::kFcfs, large, small));
  REQUIRE_FALSE(precedes(QueuePolicy::kFcfs, small, large));
  REQUIRE(precedes(QueuePolicy::kPriority, small, large));
  REQUIRE_FALSE(precedes(QueuePolicy::kPriority, large, small));
  REQUIRE(precedes(QueuePolicy::kShortest, large, small));  // 10 tokens to prefill against 16
  REQUIRE(precedes(QueuePolicy::kLpm, large, small));
}

TEST_CASE("a sequence with too many bypasses precedes all but its like") {
  const auto policy = GENERATE(QueuePolicy::kPriority, QueuePolicy::kShortest, QueuePolicy::kLpm);
  Sequence overdue = waiting(100, 0);
  const Sequence favoured = waiting(10, 5, 8);
  overdue.bypasses = kMaxBypasses - 1;
  REQUIRE(precedes(policy, favoured, overdue));
  overdue.bypasses = kMaxBypasses;
  REQUIRE(precedes(policy, overdue, favoured));
  REQUIRE_FALSE(precedes(policy, favoured, overdue));
  REQUIRE_FALSE(precedes(policy, overdue, overdue));
}

TEST_CASE("only the priority policy lets one sequence outrank another") {
  const Sequence high = waiting(10, 5);
  const Sequence low = waiting(10, 1);
  REQUIRE(outranks(QueuePolicy::kPriority, high, low));
  REQUIRE_FALSE(outranks(QueuePolicy::kPriority, low, high));
  REQUIRE_FALSE(outranks(QueuePolicy::kShortest, waiting(5, 0), low));
}

TEST_CASE("sequences of equal rank keep their order") {
  std::array<Sequence, 4> all = {waiting(1, 1), waiting(1, 2), waiting(1, 1), waiting(1, 3)};
  std::vector<Sequence*> ranked;
  for (Sequence& sequence : all) insert_by_rank(QueuePolicy::kPriority, ranked, &sequence);
  REQUIRE(ranked == std::vector{&all[3], &all[1], &all[0], &all[2]});
  ranked.clear();
  for (Sequence& sequence : all) insert_by_rank(QueuePolicy::kFcfs, ranked, &sequence);
  REQUIRE(ranked == std::vector{&all[0], &all[1], &all[2], &all[3]});
}

TEST_CASE("policies are parsed by the names of the flag") {
  REQUIRE(parse_enum<QueuePolicy>("fcfs") == QueuePolicy::kFcfs);
  REQUIRE(parse_enum<QueuePolicy>("priority") == QueuePolicy::kPriority);
  REQUIRE(parse_enum<QueuePolicy>("shortest") == QueuePolicy::kShortest);
  REQUIRE(parse_enum<QueuePolicy>("lpm") == QueuePolicy::kLpm);
  REQUIRE_FALSE(parse_enum<QueuePolicy>("LPM").has_value());
}
