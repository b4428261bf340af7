#include "cache/store/store_support.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "async/run.h"
#include "base/random.h"

namespace millrace::test {

cache::StoreIdentity make_identity(std::string model) {
  return {std::move(model), 0, 4, "bf16", 16, kPageBytes};
}

cache::PageKey make_key(uint64_t number) {
  cache::PageKey key;
  for (uint32_t i = 0; i < key.bytes.size(); i += 4) {
    const auto words = philox4x32({static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32)}, {i, 0, 0, 0});
    for (uint32_t j = 0; j < 4; ++j) key.bytes[i + j] = static_cast<uint8_t>(words[0] >> (8 * j));
  }
  return key;
}

std::vector<std::byte> make_page(uint64_t number, size_t bytes) {
  std::vector<std::byte> page(bytes);
  uint64_t word = number * 0x9E3779B97F4A7C15u + 1;
  for (std::byte& each : page) {
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    each = static_cast<std::byte>(word);
  }
  return page;
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "millrace-test-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void wait_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void StoreWorld::run(asio::awaitable<void> task) {
  run_to_end(context_, std::move(task));
}

asio::awaitable<void> StoreWorld::get_one(cache::PageStore& store, uint64_t number, size_t& succeeded) {
  std::vector<std::byte> into(kPageBytes);
  const bool hit = co_await store.get(make_key(number), into);
  if (!hit) co_return;
  ++succeeded;
  const bool is_right = into == make_page(number);
  REQUIRE(is_right);
}

asio::awaitable<void> StoreWorld::put_one(cache::PageStore& store, uint64_t number, size_t& succeeded) {
  const std::vector<std::byte> page = make_page(number);
  const bool stored = co_await store.put(make_key(number), page);
  succeeded += stored ? 1 : 0;
}

asio::awaitable<void> StoreWorld::join(async::TaskGroup& group) {
  co_await group.join();
}

bool StoreWorld::get(cache::PageStore& store, uint64_t number) {
  return get_all(store, number, 1) == 1;
}

bool StoreWorld::put(cache::PageStore& store, uint64_t number) {
  return put_all(store, number, 1) == 1;
}

bool StoreWorld::exists(cache::PageStore& store, uint64_t number) {
  bool found = false;
  const auto ask = [](cache::PageStore& where, cache::PageKey key, bool& result) -> asio::awaitable<void> {
    result = co_await where.exists(key);
  };
  run(ask(store, make_key(number), found));
  return found;
}

size_t StoreWorld::get_all(cache::PageStore& store, uint64_t first, uint64_t count) {
  size_t succeeded = 0;
  std::exception_ptr failure;
  async::TaskGroup group(runtime_, [&failure](const std::string&, std::exception_ptr error) { failure = error; });
  for (uint64_t i = first; i < first + count; ++i) group.spawn("get", get_one(store, i, succeeded));
  run(join(group));
  if (failure) std::rethrow_exception(failure);
  return succeeded;
}

size_t StoreWorld::put_all(cache::PageStore& store, uint64_t first, uint64_t count) {
  size_t succeeded = 0;
  async::TaskGroup group(runtime_);
  for (uint64_t i = first; i < first + count; ++i) group.spawn("put", put_one(store, i, succeeded));
  run(join(group));
  return succeeded;
}

cache::StoreStats StoreWorld::put_and_get_pages(cache::PageStore& store) {
  REQUIRE(put_all(store, 0, 300) == 300);
  REQUIRE(get_all(store, 0, 400) == 300);
  REQUIRE(exists(store, 299));
  REQUIRE_FALSE(exists(store, 300));
  REQUIRE(put(store, 7));
  const cache::StoreStats stats = store.stats();
  REQUIRE(stats.written == 300);
  REQUIRE(stats.already_there == 1);
  REQUIRE(stats.hits == 300);
  REQUIRE(stats.misses == 100);
  REQUIRE(stats.bytes_written == 300 * kPageBytes);
  REQUIRE(stats.bytes_read == 300 * kPageBytes);
  REQUIRE(stats.refused + stats.errors + stats.corrupt + stats.foreign == 0);
  return stats;
}

}  // namespace millrace::test
