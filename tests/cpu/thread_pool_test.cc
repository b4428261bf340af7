#include "cpu/thread_pool.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/machine.h"

using namespace millrace;
using namespace std::chrono_literals;
using cpu::ThreadPool;

namespace {

/// Runs body(slot) in a region of one chunk per thread, in which no chunk ends before all have begun. Returns false if
/// a thread does not arrive.
template <class Body>
bool run_together(ThreadPool& pool, const Body& body) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  std::atomic<int> begun{0};
  std::atomic<int> alone{0};
  pool.run(static_cast<uint32_t>(pool.threads()), [&](uint32_t, int slot) {
    ++begun;
    while (begun < pool.threads() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (begun < pool.threads()) ++alone;
    body(slot);
  });
  return alone == 0;
}

size_t thread_count() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(threads), end(threads)));
}

/// Makes threads reserve much of the address space each while it lives, so that fewer than `threads` fit.
class LittleAddressSpace {
 public:
  explicit LittleAddressSpace(size_t threads) {
    pthread_getattr_default_np(&usual_);
    pthread_attr_t large = usual_;
    pthread_attr_setstacksize(&large, kStackBytes);
    pthread_setattr_default_np(&large);
    getrlimit(RLIMIT_AS, &limit_);
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit lower{pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + threads * kStackBytes, limit_.rlim_max};
    setrlimit(RLIMIT_AS, &lower);
  }
  ~LittleAddressSpace() {
    setrlimit(RLIMIT_AS, &limit_);
    pthread_setattr_default_np(&usual_);
  }
  LittleAddressSpace(const LittleAddressSpace&) = delete;
  LittleAddressSpace& operator=(const LittleAddressSpace&) = delete;

 private:
  static constexpr size_t kStackBytes = size_t{256} << 20;
  pthread_attr_t usual_{};
  rlimit limit_{};
};

}  // namespace

TEST_CASE("every chunk runs exactly once on any thread count") {
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

TEST_CASE("ranges cover every item once and continue per thread") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads, {});
    for (int region = 0; region < 500; ++region) {
      const int64_t items = region * 7 % 301;
      std::vector<std::atomic<int>> runs(static_cast<size_t>(items));
      std::vector<std::vector<std::pair<int64_t, int64_t>>> ranges(static_cast<size_t>(threads));
      pool.run_ranges(items, [&](int64_t begin, int64_t end, int slot) {
        ranges[static_cast<size_t>(slot)].emplace_back(begin, end);
        for (int64_t i = begin; i < end; ++i) runs[static_cast<size_t>(i)].fetch_add(1, std::memory_order_relaxed);
      });
      for (const auto& count : runs) REQUIRE(count.load(std::memory_order_relaxed) == 1);
      for (const auto& taken : ranges) {
        if (threads != 2) continue;  // of more, two may take from the same share
        int breaks = 0;              // on to the other's share, and then each range before the last one
        for (size_t i = 1; i < taken.size(); ++i) {
          breaks += taken[i].first != taken[i - 1].second && taken[i].second != taken[i - 1].first ? 1 : 0;
        }
        REQUIRE(breaks < 2);
      }
    }
  }
}

TEST_CASE("what a thread cannot get to is done by the others") {
  constexpr int64_t kItems = 1000;
  ThreadPool pool(3, {});
  std::atomic<int64_t> done{0};
  std::atomic<bool> held{false};
  std::atomic<int64_t> left_behind{0};
  pool.run_ranges(kItems, [&](int64_t begin, int64_t end, int slot) {
    if (slot != 0 && !held.exchange(true)) {
      const auto deadline = std::chrono::steady_clock::now() + 10s;
      while (done < kItems - (end - begin) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      left_behind = kItems - (end - begin) - done;
    } else if (slot == 0) {
      while (!held) std::this_thread::yield();  // the first helper's range is of its own share
    }
    done += end - begin;
  });
  REQUIRE(left_behind == 0);
  REQUIRE(done == kItems);
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

TEST_CASE("sleeping helpers wake for the next region and all take part") {
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads, {});
    for (int round = 0; round < 5; ++round) {
      std::this_thread::sleep_for(5ms);
      REQUIRE(run_together(pool, [](int) {}));
    }
  }
}

TEST_CASE("helpers run on their pinned CPUs in turn") {
  const std::vector<int> allowed = Machine::allowed_processors();
  const std::vector<int> pin{allowed.front(), allowed.back()};
  ThreadPool pool(4, pin);
  std::vector<std::vector<int>> cpus(4);
  REQUIRE(run_together(pool, [&](int slot) { cpus[static_cast<size_t>(slot)] = Machine::allowed_processors(); }));
  REQUIRE(cpus[0] == allowed);  // the caller
  REQUIRE(cpus[1] == std::vector{pin[1]});
  REQUIRE(cpus[2] == std::vector{pin[0]});
  REQUIRE(cpus[3] == std::vector{pin[1]});
}

TEST_CASE("a thread that cannot start is reported and others are joined") {
  (void)ThreadPool(2, {});  // with the first thread a sanitizer may start one of its own
  const size_t before = thread_count();
  {
    const LittleAddressSpace few(5);
    REQUIRE_THROWS_WITH(ThreadPool(64, {}), Catch::Contains("of 64 compute threads can be started"));
  }
  // A thread is listed a little longer than it takes to join it.
  for (int look = 0; look < 1000 && thread_count() > before; ++look) std::this_thread::sleep_for(10ms);
  REQUIRE(thread_count() <= before);
  ThreadPool pool(3, {});
  REQUIRE(run_together(pool, [](int) {}));
}

TEST_CASE("an idle pool uses no processor time") {
  ThreadPool pool(4, {});
  pool.run(50, [](uint32_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  REQUIRE(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC < 0.02);
}

TEST_CASE("an exception in a chunk ends its region and is rethrown") {
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
