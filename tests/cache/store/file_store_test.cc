#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "base/random.h"
#include "cache/store/page_record.h"
#include "cache/store/store_support.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;
namespace fs = std::filesystem;

namespace {

FileStoreOptions options_for(const TempFolder& folder, uint64_t max_pages = 1000) {
  FileStoreOptions options;
  options.path = folder.path();
  options.max_bytes = max_pages * kRecordBytes;
  options.max_queued_puts = 10000;
  return options;
}

std::unique_ptr<PageStore> open_store(StoreWorld& world, const FileStoreOptions& options,
                                      const StoreIdentity& identity = make_identity()) {
  auto opened = open_file_store(world.runtime(), identity, options);
  INFO((opened ? "" : opened.error().message));
  REQUIRE(opened.has_value());
  return std::move(*opened);
}

fs::path identity_folder(const TempFolder& folder, const StoreIdentity& identity = make_identity()) {
  return fs::path(folder.path()) / hash_of(identity).hex();
}

fs::path page_file(const TempFolder& folder, uint64_t number, const StoreIdentity& identity = make_identity()) {
  const std::string digits = make_key(number).hex();
  return identity_folder(folder, identity) / digits.substr(0, 2) / digits;
}

size_t count_pages(const TempFolder& folder) {
  size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(identity_folder(folder))) {
    count += entry.is_regular_file() && entry.path().filename().string().size() == 64 ? 1 : 0;
  }
  return count;
}

std::vector<std::string> temp_files(const TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(identity_folder(folder) / "tmp")) {
    const fs::path kind = entry.path().extension();
    if (kind != ".lock" && kind != ".news") names.push_back(entry.path().filename().string());
  }
  return names;
}

}  // namespace

TEST_CASE("pages come back as put through io_uring and blocking calls") {
  const bool with_ring = GENERATE(true, false);
  const TempFolder folder;
  StoreWorld world;
  auto options = options_for(folder);
  options.use_io_uring = with_ring;
  std::string opening;
  std::unique_ptr<PageStore> store;
  {
    const CapturedLog log;
    store = open_store(world, options);
    opening = log.text();
  }
  if (with_ring && opening.find(", io_uring") == std::string::npos) SKIP_TEST(opening.c_str());
  REQUIRE((opening.find("blocking calls") != std::string::npos) == !with_ring);

  const StoreStats stats = world.put_and_get_pages(*store);
  REQUIRE(stats.evicted == 0);
  REQUIRE(stats.bytes_stored == 300 * kRecordBytes);
  REQUIRE(temp_files(folder).empty());

  store.reset();
  store = open_store(world, options);
  REQUIRE(store->stats().bytes_stored == 300 * kRecordBytes);
  REQUIRE(world.get_all(*store, 0, 300) == 300);
}

TEST_CASE("any flipped bit of a stored page makes a miss and deletes it") {
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, options_for(folder));
  std::vector<uint64_t> places;
  constexpr size_t kFields = offsetof(PageHeader, reserved) + 8;
  for (uint64_t at = 0; at < kFields; ++at) places.push_back(at);
  for (uint64_t at = offsetof(PageHeader, header_checksum); at < sizeof(PageHeader); ++at) places.push_back(at);
  for (uint64_t at = kFields; at < kRecordBytes; at += 97) places.push_back(at);
  places.push_back(kRecordBytes - 1);
  REQUIRE(world.put(*store, 1));
  std::ostringstream whole;
  whole << std::ifstream(page_file(folder, 1), std::ios::binary).rdbuf();
  REQUIRE(whole.str().size() == kRecordBytes);
  uint64_t corrupt = 0;
  for (const uint64_t at : places) {
    const int bit = static_cast<int>(uniform_at(1, at) * 8);
    INFO("bit " << bit << " of byte " << at);
    std::string altered = whole.str();
    altered[at] = static_cast<char>(altered[at] ^ (1 << bit));
    std::ofstream(page_file(folder, 1), std::ios::binary) << altered;
    REQUIRE_FALSE(world.get(*store, 1));
    REQUIRE_FALSE(fs::exists(page_file(folder, 1)));
    REQUIRE(store->stats().corrupt == ++corrupt);
  }
  REQUIRE(store->stats().foreign == 0);
  REQUIRE(world.put(*store, 1));
  REQUIRE(world.get(*store, 1));
}

TEST_CASE("a page of wrong length is a miss and can be put again") {
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, options_for(folder));
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, kRecordBytes - 1, kRecordBytes + 1, 2 * kRecordBytes}) {
    INFO(size << " bytes");
    REQUIRE(world.put(*store, 1));
    fs::resize_file(page_file(folder, 1), size);
    REQUIRE_FALSE(world.exists(*store, 1));
    REQUIRE_FALSE(world.get(*store, 1));
    REQUIRE_FALSE(fs::exists(page_file(folder, 1)));
  }
  REQUIRE(store->stats().corrupt == 7);
  REQUIRE(world.put(*store, 1));
  fs::resize_file(page_file(folder, 1), 5);
  REQUIRE(world.put(*store, 1));  // replaces what is no page
  REQUIRE(world.get(*store, 1));
}

TEST_CASE("a page of another identity or key under our name is a miss") {
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, options_for(folder));
  std::vector<StoreIdentity> others(5, make_identity());
  others[0].model_fingerprint = "model b";
  others[1].layer_begin = 1;
  others[2].layer_end = 5;
  others[3].kv_dtype = "f16";
  others[4].page_size = 32;
  for (const StoreIdentity& identity : others) {
    const auto other = open_store(world, options_for(folder), identity);
    REQUIRE_FALSE(world.get(*other, 1));
    REQUIRE(world.put(*other, 1));
    REQUIRE_FALSE(world.get(*store, 1));
    fs::copy_file(page_file(folder, 1, identity), page_file(folder, 1));
    REQUIRE_FALSE(world.get(*store, 1));
    REQUIRE_FALSE(fs::exists(page_file(folder, 1)));
    REQUIRE(world.get(*other, 1));
  }
  REQUIRE(store->stats().foreign == others.size());
  REQUIRE(world.put(*store, 2));
  fs::copy_file(page_file(folder, 2), page_file(folder, 3));
  REQUIRE_FALSE(world.get(*store, 3));
  REQUIRE(store->stats().foreign == others.size() + 1);
  REQUIRE(world.get(*store, 2));
}

TEST_CASE("the bound holds and evicts least recently used over restarts") {
  const TempFolder folder;
  StoreWorld world;
  auto store = open_store(world, options_for(folder, 10));
  for (uint64_t i = 0; i < 10; ++i) REQUIRE(world.put(*store, i));
  REQUIRE(world.get(*store, 0));
  REQUIRE(world.put(*store, 1));  // there already, which is a use
  REQUIRE(world.put(*store, 10));
  REQUIRE(world.put(*store, 11));
  REQUIRE_FALSE(world.exists(*store, 2));
  REQUIRE_FALSE(world.exists(*store, 3));
  REQUIRE(world.exists(*store, 0));
  REQUIRE(world.exists(*store, 1));
  REQUIRE(store->stats().evicted == 2);
  REQUIRE(world.get(*store, 4));

  store.reset();
  store = open_store(world, options_for(folder, 10));
  for (uint64_t i = 20; i < 25; ++i) REQUIRE(world.put(*store, i));
  for (const uint64_t gone : {5, 6, 7, 8, 9}) REQUIRE_FALSE(world.exists(*store, gone));
  for (const uint64_t kept : {0, 1, 10, 11, 4}) REQUIRE(world.exists(*store, kept));
  REQUIRE(store->stats().bytes_stored == 10 * kRecordBytes);

  // More puts at once than there is room for: some are refused, and the bound holds.
  const size_t stored = world.put_all(*store, 100, 100);
  REQUIRE(stored >= 10);
  REQUIRE(store->stats().refused == 100 - stored);
  REQUIRE(count_pages(folder) == 10);

  store.reset();
  store = open_store(world, options_for(folder, 3));
  REQUIRE(world.put(*store, 1000));
  REQUIRE(count_pages(folder) == 3);
}

TEST_CASE("a page that another server has used is not the first to go") {
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, options_for(folder, 3));
  for (uint64_t i = 0; i < 3; ++i) REQUIRE(world.put(*store, i));
  {
    const auto other = open_store(world, options_for(folder, 3));
    REQUIRE(world.get(*other, 0));
  }
  REQUIRE(world.put(*store, 3));
  REQUIRE(world.exists(*store, 0));
  REQUIRE_FALSE(world.exists(*store, 1));
}

TEST_CASE("files of dead writers are removed and of living ones kept") {
  const TempFolder folder;
  StoreWorld world;
  {
    const auto store = open_store(world, options_for(folder));
  }
  const fs::path temp = identity_folder(folder) / "tmp";
  std::ofstream(temp / "dead.lock").put('x');
  std::ofstream(temp / "dead.7").put('x');
  for (const char* name : {"dead.news", "lately.news"}) std::ofstream(temp / name).put('x');
  fs::last_write_time(temp / "dead.news", fs::file_time_type::clock::now() - std::chrono::minutes(5));
  std::ofstream(temp / "lockless.8").put('x');
  const auto living = open_store(world, options_for(folder));
  REQUIRE(temp_files(folder).empty());
  REQUIRE_FALSE(fs::exists(temp / "dead.lock"));
  REQUIRE_FALSE(fs::exists(temp / "dead.news"));
  REQUIRE(fs::exists(temp / "lately.news"));
  fs::path living_lock;
  for (const auto& entry : fs::directory_iterator(temp)) {
    if (entry.path().extension() == ".lock") living_lock = entry.path();
  }
  std::ofstream(temp / (living_lock.stem().string() + ".99")).put('x');
  const auto second = open_store(world, options_for(folder));
  REQUIRE(temp_files(folder).size() == 1);
  REQUIRE(fs::exists(living_lock));
}

TEST_CASE("two processes share a folder and no page is ever wrong") {
  const TempFolder folder;
  StoreWorld world;
  const auto options = options_for(folder, 20);
  const auto rounds = [&](uint64_t seed, uint64_t steps) {
    StoreWorld own;
    const auto store = open_store(own, options);
    size_t hits = 0;
    for (uint64_t step = 0; step < steps; ++step) {
      const auto first = static_cast<uint64_t>(uniform_at(seed, step) * 30);
      if (own.put_all(*store, first, 5) != 5) return size_t{0};
      hits += own.get_all(*store, first, 5);
    }
    REQUIRE(store->stats().corrupt + store->stats().foreign + store->stats().errors == 0);
    return hits;
  };
  std::vector<pid_t> children;
  for (const uint64_t seed : {1, 2}) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      size_t hits = 0;
      try {
        hits = rounds(seed, seed == 1 ? 1'000'000 : 60);
      } catch (...) {
      }
      _exit(hits > 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  REQUIRE(rounds(3, 60) > 0);
  REQUIRE(kill(children[0], SIGKILL) == 0);
  int status = 0;
  REQUIRE(waitpid(children[0], &status, 0) == children[0]);
  REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  REQUIRE(waitpid(children[1], &status, 0) == children[1]);
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));

  const auto store = open_store(world, options);
  REQUIRE(temp_files(folder).empty());
  REQUIRE(world.get_all(*store, 0, 40) > 0);
  REQUIRE(world.put(*store, 100));
  REQUIRE(count_pages(folder) <= 20);
}

namespace {

/// Puts one page, lets the page cache forget it, and gets it twice: from the disk, then from wherever.
asio::awaitable<void> round_trip(PageStore& store, const TempFolder& folder, const StoreIdentity& identity,
                                 uint64_t number, std::span<std::byte> into, size_t& hits) {
  const std::vector<std::byte> page = make_page(number, identity.page_bytes);
  const bool stored = co_await store.put(make_key(number), page);
  REQUIRE(stored);
  const int file = open(page_file(folder, number, identity).c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
  close(file);
  for (int i = 0; i < 2; ++i) {
    std::fill(into.begin(), into.end(), std::byte{0});
    const bool hit = co_await store.get(make_key(number), into);
    REQUIRE(std::equal(into.begin(), into.end(), page.begin(), page.end()));
    hits += hit ? 1 : 0;
  }
}

}  // namespace

TEST_CASE("pages are read from disk into memory of any alignment") {
  const bool with_ring = GENERATE(true, false);
  const size_t page_bytes = GENERATE(size_t{4096}, size_t{1} << 20, (size_t{1} << 20) + 24);
  const size_t shift = GENERATE(size_t{0}, size_t{8});
  const TempFolder folder;
  StoreWorld world;
  StoreIdentity identity = make_identity();
  identity.page_bytes = page_bytes;
  FileStoreOptions options;
  options.path = folder.path();
  options.max_bytes = size_t{64} << 20;
  options.use_io_uring = with_ring;
  const auto store = open_store(world, options, identity);
  std::vector<std::byte> memory(page_bytes + 4096 + shift);
  const size_t aligned = (4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096) % 4096;
  const auto into = std::span(memory).subspan(aligned + shift, page_bytes);
  size_t hits = 0;
  for (uint64_t i = 0; i < 3; ++i) world.run(round_trip(*store, folder, identity, i, into, hits));
  REQUIRE(hits == 6);
  REQUIRE(store->stats().errors == 0);
}

namespace {

asio::awaitable<void> get_and_tell(PageStore& store, std::span<std::byte> into, bool& hit) {
  hit = co_await store.get(make_key(1), into);
}

asio::awaitable<void> cancel_at_once(StoreWorld& world, PageStore& store, std::span<std::byte> into, bool& hit) {
  async::TaskGroup group(world.runtime());
  group.spawn("get", get_and_tell(store, into, hit));
  co_await asio::post(world.context(), asio::use_awaitable);  // lets it start
  group.cancel();
  co_await group.join();
}

}  // namespace

TEST_CASE("a cancelled get completes before its buffer is given back") {
  const TempFolder folder;
  StoreWorld world;
  const auto store = open_store(world, options_for(folder));
  REQUIRE(world.put(*store, 1));
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> into(kPageBytes);
    bool hit = false;
    world.run(cancel_at_once(world, *store, into, hit));
    REQUIRE(hit);
    REQUIRE(into == make_page(1));
  }
}

TEST_CASE("closing a store ends what is under way and what is queued") {
  const TempFolder folder;
  StoreWorld world;
  auto options = options_for(folder);
  options.threads = 1;
  auto store = open_store(world, options);
  REQUIRE(world.put(*store, 1));
  std::vector<std::vector<std::byte>> buffers(500, std::vector<std::byte>(kPageBytes));
  std::array<bool, 500> hits{};
  async::TaskGroup group(world.runtime());
  for (size_t i = 0; i < buffers.size(); ++i) group.spawn("get", get_and_tell(*store, buffers[i], hits[i]));
  const auto close = [](std::unique_ptr<PageStore>& what) -> asio::awaitable<void> {
    what.reset();
    co_return;
  };
  // Starts after the gets, since the executor keeps their order.
  group.spawn("close", close(store));
  const auto join = [](async::TaskGroup& tasks) -> asio::awaitable<void> { co_await tasks.join(); };
  world.run(join(group));
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (hits[i]) REQUIRE(buffers[i] == make_page(1));
  }
}

TEST_CASE("a full queue refuses puts at once") {
  const TempFolder folder;
  StoreWorld world;
  auto options = options_for(folder);
  options.threads = 1;
  options.use_io_uring = false;
  options.max_queued_puts = 1;
  const auto store = open_store(world, options);
  const size_t stored = world.put_all(*store, 0, 200);
  REQUIRE(stored >= 1);
  REQUIRE(stored < 200);
  REQUIRE(store->stats().refused == 200 - stored);
  REQUIRE(count_pages(folder) == stored);
}

TEST_CASE("options that cannot work are named") {
  const TempFolder folder;
  StoreWorld world;
  const auto message = [&](const FileStoreOptions& options, const StoreIdentity& identity = make_identity()) {
    const auto opened = open_file_store(world.runtime(), identity, options);
    return opened ? std::string() : opened.error().message;
  };
  auto options = options_for(folder);
  options.max_bytes = kRecordBytes - 1;
  REQUIRE_THAT(message(options),
               Catch::Contains(std::to_string(kRecordBytes - 1)) && Catch::Contains(std::to_string(kRecordBytes)));
  options = options_for(folder);
  options.threads = 0;
  REQUIRE_THAT(message(options), Catch::Contains("0 threads"));
  options = options_for(folder);
  options.path.clear();
  REQUIRE_THAT(message(options), Catch::Contains("path is empty"));
  options.path = folder.path() + "/file";
  std::ofstream(options.path).put('x');
  REQUIRE_THAT(message(options), Catch::Contains(options.path));
  options.path = "/proc/nothing";
  REQUIRE_THAT(message(options), Catch::Contains("/proc/nothing"));
  options = options_for(folder);
  auto identity = make_identity();
  identity.layer_end = 0;
  REQUIRE_THAT(message(options, identity), Catch::Contains("layers [0, 0)"));
  identity = make_identity("");
  REQUIRE_THAT(message(options, identity), Catch::Contains("model ''"));
}
