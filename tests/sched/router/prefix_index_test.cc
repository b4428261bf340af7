#include "sched/router/prefix_index.h"

#include <catch2/catch.hpp>

#include "base/random.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

PrefixIndex index_of(size_t max_pages) {
  PrefixIndex index;
  index.set_max_pages(max_pages);
  return index;
}

using Pages = std::vector<PageName>;

}  // namespace

TEST_CASE("an index matches whole prefixes only") {
  PrefixIndex index = index_of(10);
  index.insert(Pages{1, 2, 3});
  REQUIRE(index.match(Pages{1, 2, 3, 4}) == 3);
  REQUIRE(index.match(Pages{1, 2, 9, 3}) == 2);
  REQUIRE(index.match(Pages{2, 3}) == 2);
  REQUIRE(index.match(Pages{9, 1, 2}) == 0);
  REQUIRE(index.match({}) == 0);
}

TEST_CASE("an index forgets the least recently used pages") {
  PrefixIndex index = index_of(6);
  index.insert(Pages{1, 2, 3});
  index.insert(Pages{11, 12, 13});
  index.insert(Pages{1, 2});  // used again, so that 3 is the oldest
  index.insert(Pages{21, 22});
  REQUIRE(index.size() == 6);
  REQUIRE(index.match(Pages{1, 2, 3}) == 2);
  REQUIRE(index.match(Pages{11, 12, 13}) == 2);
  index.evict(1);
  REQUIRE(index.match(Pages{11, 12, 13}) == 1);
  index.evict(100);
  REQUIRE(index.size() == 0);
}

TEST_CASE("an index without room keeps nothing") {
  PrefixIndex index;
  index.insert(Pages{1, 2});
  REQUIRE(index.size() == 0);
  index.set_max_pages(1);
  index.insert(Pages{1, 2});
  REQUIRE(index.match(Pages{1, 2}) == 1);
  index.set_max_pages(0);
  REQUIRE(index.size() == 0);
}

TEST_CASE("an index never exceeds its bound nor loses a newer prefix") {
  for (uint64_t seed = 0; seed < test::repetitions(50); ++seed) {
    INFO("seed " << seed);
    uint64_t draws = 0;
    const auto range = [&](uint32_t bound) { return static_cast<uint32_t>(uniform_at(seed, draws++) * bound); };
    const size_t max_pages = 1 + range(30);
    PrefixIndex index = index_of(max_pages);
    for (int round = 0; round < 100; ++round) {
      Pages prefix;
      const uint64_t family = range(6);
      for (uint64_t page = 0; page <= range(12); ++page) prefix.push_back(100 * family + page);
      index.insert(prefix);
      REQUIRE(index.size() <= max_pages);
      REQUIRE(index.match(prefix) == std::min(prefix.size(), max_pages));
      if (range(5) > 0) continue;
      const size_t before = index.size();
      const size_t count = range(4);
      index.evict(count);
      REQUIRE(index.size() == before - std::min(before, count));
      // What is left of a prefix is its beginning.
      const size_t left = index.match(prefix);
      for (size_t page = left; page < prefix.size(); ++page) REQUIRE(index.match(Pages{prefix[page]}) == 0);
    }
  }
}
