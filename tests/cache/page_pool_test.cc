#include "cache/page_pool.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "base/random.h"

using namespace millrace;
using namespace millrace::cache;

TEST_CASE("allocation is all or nothing and never gives a page twice") {
  PagePool pool(5);
  std::vector<PageId> held;
  REQUIRE(pool.allocate(3, held));
  REQUIRE_FALSE(pool.allocate(3, held));
  REQUIRE(held.size() == 3);
  REQUIRE(pool.allocate(2, held));
  REQUIRE(pool.free_count() == 0);
  REQUIRE(std::set<PageId>(held.begin(), held.end()).size() == 5);
  REQUIRE(pool.allocate(0, held));
  pool.release(held);
  REQUIRE(pool.free_count() == 5);
}

TEST_CASE("random use conserves pages") {
  PagePool pool(100);
  std::vector<std::vector<PageId>> holders;
  std::set<PageId> out;
  for (uint64_t step = 0; step < 5000; ++step) {
    if (uniform_at(1, step) < 0.5) {
      std::vector<PageId> pages;
      if (!pool.allocate(static_cast<size_t>(uniform_at(2, step) * 12), pages)) continue;
      for (const PageId page : pages) REQUIRE(out.insert(page).second);
      holders.push_back(std::move(pages));
    } else if (!holders.empty()) {
      const auto at = static_cast<size_t>(uniform_at(3, step) * static_cast<double>(holders.size()));
      pool.release(holders[at]);
      for (const PageId page : holders[at]) out.erase(page);
      holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(at));
    }
    REQUIRE(pool.free_count() + out.size() == 100);
  }
}
