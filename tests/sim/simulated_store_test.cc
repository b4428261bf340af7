#include "sim/simulated_store.h"

#include <boost/asio/co_spawn.hpp>
#include <catch2/catch.hpp>
#include <exception>

#include "async/task_group.h"
#include "async/virtual_runtime.h"
#include "base/random.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::sim;
using namespace std::chrono_literals;

namespace {

constexpr size_t kPageBytes = 64;

StoreIdentity identity_of(uint32_t first_layer) {
  return {"model", first_layer, first_layer + 4, "bf16", 16, kPageBytes};
}

PageKey key_of(uint64_t number) {
  PageKey key;
  for (size_t i = 0; i < 8; ++i) key.bytes[i] = static_cast<uint8_t>(number >> (8 * i));
  return key;
}

std::vector<std::byte> page_of(uint64_t number) {
  return std::vector<std::byte>(kPageBytes, static_cast<std::byte>(number * 7 + 1));
}

/// A world whose script ran to its end, or the test fails.
struct StoreScript {
  explicit StoreScript(uint64_t seed) : world(seed), runtime(world.add_thread()) {}
  void run(asio::awaitable<void> script) {
    bool ended = false;
    std::exception_ptr failure;
    asio::co_spawn(runtime.executor(), std::move(script), [&](std::exception_ptr error) {
      ended = true;
      failure = std::move(error);
    });
    world.run();
    if (failure) std::rethrow_exception(failure);
    REQUIRE(ended);
  }
  std::unique_ptr<PageStore> open(uint32_t first_layer, SimulatedStoreOptions options = {}) {
    return make_simulated_store(runtime, identity_of(first_layer), store_backend, std::move(options));
  }

  async::VirtualWorld world;
  async::Runtime& runtime;
  std::shared_ptr<SimulatedStoreBackend> store_backend = std::make_shared<SimulatedStoreBackend>(10);
};

asio::awaitable<void> put_some(PageStore& store, uint64_t first, uint64_t count, size_t& stored) {
  for (uint64_t i = first; i < first + count; ++i) {
    const auto page = page_of(i);
    const bool ok = co_await store.put(key_of(i), page);
    stored += ok ? 1 : 0;
  }
}

asio::awaitable<void> get_some(PageStore& store, uint64_t first, uint64_t count, size_t& hits) {
  for (uint64_t i = first; i < first + count; ++i) {
    std::vector<std::byte> into(kPageBytes);
    const bool ok = co_await store.get(key_of(i), into);
    REQUIRE((!ok || into == page_of(i)));
    hits += ok ? 1 : 0;
  }
}

}  // namespace

TEST_CASE("simulated stores share a bounded backend by identity") {
  StoreScript script(1);
  const auto a = script.open(0);
  const auto same = script.open(0);
  const auto other = script.open(4);
  size_t stored = 0;
  size_t hits = 0;
  script.run(put_some(*a, 0, 10, stored));
  REQUIRE(stored == 10);
  script.run(get_some(*same, 0, 10, hits));
  REQUIRE(hits == 10);
  script.run(get_some(*other, 0, 10, hits));
  REQUIRE(hits == 10);
  script.run(get_some(*a, 0, 3, hits));
  script.run(put_some(*same, 100, 5, stored));
  REQUIRE(stored == 15);
  hits = 0;
  script.run(get_some(*a, 0, 10, hits));
  REQUIRE(hits == 5);
  REQUIRE(same->stats().evicted == 5);
  REQUIRE(a->stats().bytes_stored == 10 * kPageBytes);
  hits = 0;
  script.run(get_some(*a, 0, 3, hits));
  REQUIRE(hits == 3);
}

namespace {

asio::awaitable<void> get_at_once(StoreScript& script, PageStore& store, size_t count, size_t& hits) {
  async::TaskGroup group(script.runtime);
  for (size_t i = 0; i < count; ++i) group.spawn("get", get_some(store, 1, 1, hits));
  co_await group.join();
}

asio::awaitable<void> get_and_cancel(StoreScript& script, PageStore& store, async::Duration& ended, size_t& hits) {
  const auto begin = script.runtime.now();
  async::TaskGroup group(script.runtime);
  group.spawn("get", get_some(store, 1, 1, hits));
  co_await async::sleep_for(script.runtime, 1ms);
  group.cancel();
  co_await group.join();
  ended = script.runtime.now() - begin;
}

}  // namespace

TEST_CASE("store operations take virtual time in parallel") {
  StoreScript script(2);
  const auto fast = script.open(0);
  const auto slow = script.open(0, {.delay = [](StoreCall, size_t bytes) { return async::Duration(bytes * 100'000); }});
  size_t count = 0;
  script.run(put_some(*fast, 1, 1, count));
  REQUIRE(script.world.now().time_since_epoch() == 0ns);
  count = 0;
  script.run(get_at_once(script, *slow, 1000, count));
  REQUIRE(count == 1000);
  REQUIRE(script.world.now().time_since_epoch() == 6400us);
  async::Duration ended{};
  count = 0;
  script.run(get_and_cancel(script, *slow, ended, count));
  REQUIRE(count == 1);
  REQUIRE(ended == 6400us);
}

TEST_CASE("store faults are misses and refused puts of one seed") {
  const auto history = [](uint64_t seed) {
    StoreScript script(seed);
    SimulatedStoreOptions options;
    options.fails = [&](StoreCall) { return script.world.random() % 4 == 0; };
    options.delay = [&](StoreCall, size_t) { return async::Duration(script.world.random() % 1'000'000); };
    const auto store = script.open(0, options);
    size_t stored = 0;
    size_t hits = 0;
    async::TaskGroup group(script.runtime);
    for (uint64_t i = 0; i < 20; ++i) {
      group.spawn("put", put_some(*store, i % 10, 5, stored));
      group.spawn("get", get_some(*store, i % 10, 5, hits));
    }
    const auto join = [](async::TaskGroup& tasks) -> asio::awaitable<void> { co_await tasks.join(); };
    script.run(join(group));
    const StoreStats stats = store->stats();
    REQUIRE(stats.hits == hits);
    REQUIRE(stats.written + stats.already_there == stored);
    REQUIRE(stats.hits + stats.misses == 100);
    REQUIRE(stats.refused == 100 - stored);
    REQUIRE(stats.refused > 5);
    REQUIRE(hits > 5);
    return script.world.trace_hash();
  };
  REQUIRE(history(1) == history(1));
  REQUIRE(history(1) != history(2));
}
