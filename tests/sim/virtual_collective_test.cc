#include "sim/virtual_collective.h"

#include <catch2/catch.hpp>

#include "async/virtual_runtime.h"
#include "async/task_group.h"
#include "support/effort.h"
#include "support/mentions.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::sim;
using namespace std::chrono_literals;
using test::Mentions;

namespace {

/// The ranks of a stage in one virtual world, each on a thread of its own.
struct VirtualRanks {
  VirtualRanks(size_t size, uint64_t seed, VirtualCollectiveOptions options = {}) : world(seed) {
    for (size_t rank = 0; rank < size; ++rank) runtimes.push_back(world.add_thread());
    group.emplace(runtimes, options);
    for (async::Runtime& runtime : runtimes) tasks.push_back(std::make_unique<async::TaskGroup>(runtime));
  }
  async::VirtualWorld world;
  std::vector<std::reference_wrapper<async::Runtime>> runtimes;
  std::optional<VirtualGroup> group;
  std::vector<std::unique_ptr<async::TaskGroup>> tasks;
};

/// What one rank saw: the results of its calls, when they ended, and why they did not.
struct Seen {
  std::vector<VirtualGroup::Hashes> results;
  async::TimePoint end;
  std::string failure;
};

uint64_t hash_of(size_t rank, uint64_t call, size_t i) {
  return (rank + 1) * 1'000'003 + call * 977 + i;
}

asio::awaitable<void> call_in_turn(VirtualRanks& ranks, size_t rank, uint64_t calls, async::Duration late, Seen& seen) {
  std::exception_ptr failure;
  try {
    co_await async::sleep_for(ranks.runtimes[rank], late);
    for (uint64_t call = 0; call < calls; ++call) {
      VirtualGroup::Hashes values(1 + call % 3);
      for (size_t i = 0; i < values.size(); ++i) values[i] = hash_of(rank, call, i);
      const auto number = static_cast<int32_t>(rank);
      VirtualGroup::Hashes result;
      if (call % 2 == 0) result = co_await ranks.group->all_reduce(number, std::move(values), 1000);
      if (call % 2 == 1) result = co_await ranks.group->all_gather(number, std::move(values), 1000);
      seen.results.push_back(std::move(result));
    }
    seen.end = ranks.runtimes[rank].get().now();
  } catch (const std::exception& error) {
    seen.failure = error.what();
  }
}

uint64_t tree(size_t first, size_t count, uint64_t call, size_t i) {
  if (count == 1) return hash_of(first, call, i);
  return VirtualGroup::add(tree(first, count / 2, call, i), tree(first + count / 2, count / 2, call, i));
}

}  // namespace

TEST_CASE("virtual collectives give all ranks the sums of the tree") {
  for (uint64_t repetition = 0; repetition < test::repetitions(20); ++repetition) {
    const uint64_t seed = test::test_seed() + repetition;
    for (const size_t size : {1, 2, 4, 8}) {
      CAPTURE(seed, size);
      VirtualRanks ranks(size, seed);
      std::vector<Seen> seen(size);
      constexpr uint64_t kCalls = 30;
      for (size_t rank = 0; rank < size; ++rank) {
        ranks.tasks[rank]->spawn("rank",
                                 call_in_turn(ranks, rank, kCalls, (seed * 7 + rank * 13) % 50 * 1us, seen[rank]));
      }
      ranks.world.run();
      for (size_t rank = 0; rank < size; ++rank) {
        REQUIRE(seen[rank].failure.empty());
        REQUIRE(seen[rank].results == seen[0].results);
      }
      for (uint64_t call = 0; call < kCalls; ++call) {
        const VirtualGroup::Hashes& found = seen[0].results[call];
        const size_t count = 1 + call % 3;
        for (size_t i = 0; i < count && call % 2 == 0; ++i) REQUIRE(found[i] == tree(0, size, call, i));
        for (size_t i = 0; i < found.size() && call % 2 == 1; ++i) {
          REQUIRE(found[i] == hash_of(i / count, call, i % count));
        }
      }
    }
  }
}

TEST_CASE("virtual collectives take the time of last rank and wire") {
  VirtualRanks ranks(4, 1, {.latency = 10us, .bytes_per_second = 1e9});
  std::vector<Seen> seen(4);
  for (size_t rank = 0; rank < 4; ++rank) {
    ranks.tasks[rank]->spawn("rank", call_in_turn(ranks, rank, 2, rank == 2 ? 5ms : 0ms, seen[rank]));
  }
  ranks.world.run();
  // Reducing: two steps of 1000 bytes. Gathering: the slices of three others in two steps.
  const async::Duration wanted = 5ms + 2 * 10us + 2us + 2 * 10us + 3us;
  for (const Seen& each : seen) REQUIRE(each.end.time_since_epoch() == wanted);
}

TEST_CASE("an abort frees the ranks of a virtual collective") {
  VirtualRanks ranks(4, 1);
  std::vector<Seen> seen(4);
  // Rank 3 never comes.
  for (size_t rank = 0; rank < 3; ++rank) {
    ranks.tasks[rank]->spawn("rank", call_in_turn(ranks, rank, 2, 0ms, seen[rank]));
  }
  ranks.world.run();
  for (size_t rank = 0; rank < 3; ++rank) REQUIRE(seen[rank].failure.empty());
  ranks.group->abort("rank 3 is gone");
  ranks.group->abort("a later reason");
  ranks.tasks[3]->spawn("rank", call_in_turn(ranks, 3, 2, 0ms, seen[3]));
  ranks.world.run();
  for (const Seen& each : seen) REQUIRE(each.failure == "rank 3 is gone");
}
