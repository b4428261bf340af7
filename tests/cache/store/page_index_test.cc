#include "cache/store/page_index.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "base/random.h"
#include "cache/store/store_support.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;

TEST_CASE("victims are the least recently used pages until all fits") {
  PageIndex index(100);
  for (uint64_t i = 0; i < 4; ++i) index.touch(make_key(i), 25);
  index.touch(make_key(0), 25);
  REQUIRE_FALSE(index.take_victim());
  REQUIRE(index.try_reserve(30));
  REQUIRE_FALSE(index.fits());
  REQUIRE(index.take_victim()->key == make_key(1));
  REQUIRE_FALSE(index.fits());
  REQUIRE(index.take_victim()->key == make_key(2));
  REQUIRE_FALSE(index.take_victim());
  index.commit(make_key(9), 30);
  REQUIRE(index.bytes() == 80);
  REQUIRE(index.try_reserve(40));
  REQUIRE_FALSE(index.try_reserve(61));
  REQUIRE(index.try_reserve(60));
  while (index.take_victim()) {
  }
  REQUIRE(index.fits());
  REQUIRE(index.page_count() == 0);
  index.release(100);
  REQUIRE(index.try_reserve(100));
}

TEST_CASE("a scan adds and dates and drops what others changed") {
  PageIndex index(1000);
  for (uint64_t i = 0; i < 3; ++i) index.touch(make_key(i), 10);
  const int64_t begin_ns = index.now_ns();
  index.touch(make_key(3), 10);  // after the scan has passed its folder
  const std::vector<StoredPage> found = {{make_key(0), 10, begin_ns - 1000'000'000'000},
                                         {make_key(1), 10, begin_ns + 1'000'000'000'000},
                                         {make_key(7), 20, 5}};
  index.merge(found, begin_ns);
  REQUIRE(index.page_count() == 4);
  REQUIRE(index.bytes() == 50);
  REQUIRE(index.try_reserve(1000));
  std::vector<PageKey> order;
  while (const auto victim = index.take_victim()) order.push_back(victim->key);
  REQUIRE(order == std::vector<PageKey>{make_key(7), make_key(0), make_key(3), make_key(1)});
}

TEST_CASE("a foreign pending write counts and expires without a trace") {
  PageIndex index(100);
  const int64_t now_ns = index.now_ns();
  index.touch(make_key(0), 30);
  index.add_pending({make_key(1), 40, now_ns});
  index.add_pending({make_key(0), 30, now_ns});  // there already
  REQUIRE(index.bytes() == 70);
  REQUIRE(index.try_reserve(60));
  REQUIRE(index.has_room());
  REQUIRE(index.take_victim()->key == make_key(0));
  REQUIRE(index.fits());
  REQUIRE(index.try_reserve(1));
  REQUIRE_FALSE(index.has_room());
  REQUIRE_FALSE(index.take_victim());
  index.add({make_key(1), 40, now_ns + 1});  // it has been written
  REQUIRE(index.has_room());
  REQUIRE(index.take_victim()->key == make_key(1));
  index.release(61);

  constexpr int64_t kSecond = 1'000'000'000;
  index.add_pending({make_key(2), 50, now_ns});
  index.merge({}, now_ns + kSecond);
  REQUIRE(index.bytes() == 50);
  index.merge({}, now_ns + 1000 * kSecond);
  REQUIRE(index.bytes() == 0);
  REQUIRE(index.try_reserve(100));
  REQUIRE(index.has_room());
}

TEST_CASE("of what is told of a page the latest counts") {
  PageIndex index(1000);
  index.add({make_key(0), 10, 50});
  index.forget(make_key(0), 49);
  REQUIRE(index.bytes() == 10);
  index.forget(make_key(0), 50);
  REQUIRE(index.bytes() == 0);
  index.forget(make_key(0), 60);
  index.add_pending({make_key(0), 10, 70});
  index.forget(make_key(0), 70);
  REQUIRE(index.bytes() == 0);
  REQUIRE(index.try_reserve(1000));
  REQUIRE(index.has_room());
  index.add({make_key(1), 10, 90});
  index.add({make_key(2), 10, 80});
  index.add({make_key(1), 10, 70});
  REQUIRE(index.take_victim()->key == make_key(2));
  REQUIRE(index.take_victim()->key == make_key(1));
}

TEST_CASE("access times are drained once and only of present pages") {
  PageIndex index(1000);
  for (uint64_t i = 0; i < 3; ++i) index.touch(make_key(i), 10);
  index.touch(make_key(0), 10);
  index.forget(make_key(1));
  const auto uses = index.take_touched();
  REQUIRE(uses.size() == 2);
  REQUIRE(uses[0].used_ns > uses[1].used_ns);
  REQUIRE(index.take_touched().empty());
  index.add({make_key(5), 10, 5});
  REQUIRE(index.take_touched().empty());
}

TEST_CASE("a page set aside counts, and is taken when no other victim is left") {
  PageIndex index(30);
  for (uint64_t i = 1; i <= 3; ++i) index.add({make_key(i), 10, static_cast<int64_t>(i)});
  REQUIRE(index.try_reserve(20));
  const auto first = index.take_victim();
  REQUIRE(first->key == make_key(1));
  index.set_aside(*first);
  REQUIRE(index.bytes() == 30);
  REQUIRE(index.has_victims());
  REQUIRE(index.take_victim()->key == make_key(2));
  REQUIRE(index.take_victim()->key == make_key(3));
  index.release(20);
  REQUIRE(index.try_reserve(30));
  REQUIRE(index.take_victim()->key == make_key(1));
  REQUIRE_FALSE(index.has_victims());
  REQUIRE(index.bytes() == 0);
  // A scan that finds the page makes it a victim like any other.
  index.release(30);
  const StoredPage found{make_key(4), 10, 4};
  index.set_aside(found);
  index.add({make_key(5), 10, 5});
  index.merge(std::vector{found, StoredPage{make_key(5), 10, 5}}, 6);
  REQUIRE(index.try_reserve(20));
  REQUIRE(index.take_victim()->key == make_key(4));
}

TEST_CASE("random use keeps the account of bytes") {
  PageIndex index(2000);
  std::map<PageKey, uint64_t> model;
  for (uint64_t step = 0; step < 20000; ++step) {
    const PageKey key = make_key(static_cast<uint64_t>(uniform_at(1, step) * 300));
    const auto bytes = static_cast<uint64_t>(uniform_at(2, step) * 50) + 1;
    if (uniform_at(3, step) < 0.2) {
      index.forget(key);
      model.erase(key);
    } else {
      REQUIRE(index.try_reserve(bytes));
      while (const auto victim = index.take_victim()) {
        REQUIRE(model.at(victim->key) == victim->bytes);
        model.erase(victim->key);
      }
      REQUIRE(index.fits());
      index.commit(key, bytes);
      model[key] = bytes;
    }
    uint64_t sum = 0;
    for (const auto& [each, size] : model) sum += size;
    REQUIRE(index.bytes() == sum);
    REQUIRE(index.page_count() == model.size());
  }
}
