#include "base/parallel_for.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace millrace;

TEST_CASE("parallel_for runs each item once in whole blocks") {
  for (const int64_t count : {0, 1, 7, 32, 33, 1000}) {
    for (const int32_t threads : {0, 1, 3}) {
      INFO(count << " items on " << threads << " threads");
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      std::atomic<bool> whole = true;
      parallel_for({.count = count, .block = 8, .threads = threads, .thread_name = "test"},
                   [&](int64_t begin, int64_t end) {
                     if (begin % 8 != 0 || (end != count && end != begin + 8) || begin >= end) whole = false;
                     for (int64_t i = begin; i < end; ++i) ++runs[static_cast<size_t>(i)];
                   });
      REQUIRE(whole);
      for (const std::atomic<int>& each : runs) REQUIRE(each == 1);
    }
  }
}

TEST_CASE("parallel_for uses as many threads as it may") {
  // Each of three blocks waits for the others, so fewer threads would never end.
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> arrived = 0;
  parallel_for({.count = 3, .threads = 3, .thread_name = "test"}, [&](int64_t, int64_t) {
    {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    }
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  REQUIRE(seen.size() == 3);
  REQUIRE(seen.contains(std::this_thread::get_id()));
}

TEST_CASE("parallel_for rethrows and starts no block after a failure") {
  for (const int32_t threads : {1, 4}) {
    INFO(threads << " threads");
    std::atomic<int64_t> runs = 0;
    const auto fail = [&] {
      parallel_for({.count = 1'000'000, .threads = threads, .thread_name = "test"}, [&](int64_t begin, int64_t) {
        ++runs;
        if (begin == 10) throw std::runtime_error("block 10");
        if (begin > 10) std::this_thread::yield();
      });
    };
    REQUIRE_THROWS_WITH(fail(), "block 10");
    REQUIRE(runs < 1'000'000);
    if (threads == 1) REQUIRE(runs == 11);
  }
}
