#include "cpu/thread_pool.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <stdexcept>

using namespace millrace;
using cpu::ThreadPool;

TEST_CASE("every chunk runs exactly once, whatever the thread count") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads, {});
    REQUIRE(pool.threads() == threads);
    for (int region = 0; region < 2000; ++region) {
      const auto chunks = static_cast<uint32_t>(region % 67);
      std::vector<std::atomic<int>> runs(chunks);
      std::atomic<int> bad_slots{0};  // Catch2 counts its assertions on one thread only
      pool.run(chunks, [&](uint32_t chunk, int slot) {
        if (slot < 0 || slot >= threads) ++bad_slots;
        runs[chunk].fetch_add(1, std::memory_order_relaxed);
      });
      REQUIRE(bad_slots == 0);
      for (const auto& count : runs) REQUIRE(count.load(std::memory_order_relaxed) == 1);
    }
  }
}

TEST_CASE("what chunks wrote is visible after the region") {
  ThreadPool pool(3, {});
  std::vector<int64_t> values(1000);
  for (int region = 1; region <= 300; ++region) {
    pool.run_ranges(1000, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i * region;
    });
    REQUIRE(values[999] == 999LL * region * (region + 1) / 2);
  }
}

TEST_CASE("helpers that sleep wake for the next region") {
  ThreadPool pool(3, {});
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> sum{0};
    pool.run(100, [&](uint32_t chunk, int) { sum += static_cast<int>(chunk); });
    REQUIRE(sum == 4950);
  }
}

TEST_CASE("an idle pool uses no processor time") {
  ThreadPool pool(4, {});
  pool.run(50, [](uint32_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  REQUIRE(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC < 0.02);
}

TEST_CASE("an exception in a chunk ends the region and reaches the caller") {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads, {});
    REQUIRE_THROWS_AS(pool.run(40,
                               [](uint32_t chunk, int) {
                                 if (chunk == 17) throw std::runtime_error("chunk 17");
                               }),
                      std::runtime_error);
    int after = 0;
    pool.run(1, [&](uint32_t, int) { ++after; });
    REQUIRE(after == 1);
  }
}

TEST_CASE("regions of several threads take turns") {
  ThreadPool pool(2, {});
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int region = 0; region < 500; ++region) pool.run(7, [&](uint32_t, int) { ++total; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  REQUIRE(total == 3 * 500 * 7);
}
