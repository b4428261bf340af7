#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <thread>

#include "cache/store/folder_sync.h"
#include "cache/store/store_support.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxPages = 20;

FileStoreOptions shared_options(const TempFolder& folder) {
  FileStoreOptions options;
  options.path = folder.path();
  options.max_bytes = kMaxPages * kRecordBytes;
  options.max_queued_puts = 10000;
  return options;
}

std::unique_ptr<PageStore> open_shared_store(StoreWorld& world, const TempFolder& folder) {
  return open_file_store(world.runtime(), make_identity(), shared_options(folder)).value();
}

size_t count_pages(const TempFolder& folder) {
  size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    count += entry.is_regular_file() && entry.path().filename().string().size() == 64 ? 1 : 0;
  }
  return count;
}

PageChange news_of(uint64_t number, PageChange::Kind kind = PageChange::Kind::kWritten) {
  return {make_key(number), static_cast<int64_t>(number), kRecordBytes, kind};
}

std::vector<PageKey> keys_of(const ChangeJournal::NewChanges& learned) {
  std::vector<PageKey> keys;
  for (const PageChange& news : learned.changes) keys.push_back(news.key);
  return keys;
}

}  // namespace

TEST_CASE("each writer sees what others append once and in order") {
  const TempFolder temp;
  const auto first = StoreFolder::open(temp.path(), make_identity()).value();
  auto second = StoreFolder::open(temp.path(), make_identity()).value();
  REQUIRE(first->journal().append(news_of(1)) == 0);
  REQUIRE(first->journal().append(news_of(2, PageChange::Kind::kRemoved)) == 0);
  REQUIRE(first->journal().append(news_of(3, PageChange::Kind::kWriting)) == 0);
  const auto third = StoreFolder::open(temp.path(), make_identity()).value();
  const auto learned = second->journal().poll();
  REQUIRE(keys_of(learned) == std::vector<PageKey>{make_key(1), make_key(2), make_key(3)});
  REQUIRE(learned.changes[1].kind == PageChange::Kind::kRemoved);
  REQUIRE(learned.changes[2].kind == PageChange::Kind::kWriting);
  REQUIRE(learned.changes[2].at_ns == 3);
  REQUIRE(learned.changes[2].bytes == kRecordBytes);
  REQUIRE_FALSE(learned.missed);
  REQUIRE(second->journal().poll().changes.empty());
  REQUIRE(first->journal().poll().changes.empty());
  REQUIRE(keys_of(third->journal().poll()) == keys_of(learned));
  REQUIRE(third->journal().poll().changes.empty());
  // What somebody told last is learnt also after it has gone.
  REQUIRE(second->journal().append(news_of(4)) == 0);
  second.reset();
  REQUIRE(keys_of(first->journal().poll()) == std::vector<PageKey>{make_key(4)});
  const auto fourth = StoreFolder::open(temp.path(), make_identity()).value();
  REQUIRE(fourth->journal().append(news_of(5)) == 0);
  REQUIRE(keys_of(first->journal().poll()) == std::vector<PageKey>{make_key(5)});
}

TEST_CASE("a writer that lags behind the journal knows what it missed") {
  const TempFolder temp;
  const auto teller = StoreFolder::open(temp.path(), make_identity()).value();
  const auto hearer = StoreFolder::open(temp.path(), make_identity()).value();
  uint64_t number = 0;
  const auto tell = [&](uint64_t count) {
    for (const uint64_t end = number + count; number < end; ++number)
      REQUIRE(teller->journal().append(news_of(number)) == 0);
  };
  for (const uint64_t count : {ChangeJournal::kCapacity - 1, uint64_t{10}, ChangeJournal::kCapacity - 1}) {
    const uint64_t begin = number;
    tell(count);
    const auto learned = hearer->journal().poll();
    REQUIRE_FALSE(learned.missed);
    REQUIRE(learned.changes.size() == count);
    for (uint64_t i = 0; i < count; ++i) REQUIRE(learned.changes[i].key == make_key(begin + i));
  }
  tell(ChangeJournal::kCapacity);
  const auto most = hearer->journal().poll();
  REQUIRE(most.missed);
  REQUIRE(most.changes.size() == ChangeJournal::kCapacity - 1);
  REQUIRE(most.changes.back().key == make_key(number - 1));
  tell(1);
  const auto learned = hearer->journal().poll();
  REQUIRE_FALSE(learned.missed);
  REQUIRE(learned.changes.size() == 1);
}

TEST_CASE("entries overwritten while read count as missed") {
  const TempFolder temp;
  const auto folder = StoreFolder::open(temp.path(), make_identity()).value();
  constexpr uint64_t kEnd = 10 * ChangeJournal::kCapacity;
  std::atomic<uint64_t> told{0};
  size_t failures = 0;
  std::thread teller([&] {
    for (; told < kEnd; ++told) failures += folder->journal().append(news_of(told)) == 0 ? 0 : 1;
  });
  size_t out_of_order = 0;
  while (told < kEnd) {
    ChangeJournal hearer(folder->descriptor(), "hearer");
    const auto news = hearer.poll().changes;
    for (size_t i = 1; i < news.size(); ++i) out_of_order += news[i].at_ns == news[i - 1].at_ns + 1 ? 0 : 1;
    fs::remove(folder->path() + "/" + hearer.name());
  }
  teller.join();
  REQUIRE(failures == 0);
  REQUIRE(out_of_order == 0);
}

TEST_CASE("a server that has missed news reads the folder") {
  const TempFolder temp;
  const RecordFormat form(make_identity());
  StoreCounters counters;
  FolderSync pages(StoreFolder::open(temp.path(), make_identity()).value(), make_identity(), shared_options(temp), form,
                   counters);
  const auto other = StoreFolder::open(temp.path(), make_identity()).value();
  for (uint64_t i = 0; i < 5; ++i) REQUIRE(other->journal().append(news_of(i)) == 0);
  pages.poll_journal();
  REQUIRE_FALSE(pages.has_missed_changes());
  REQUIRE(pages.index().page_count() == 5);
  for (uint64_t i = 0; i < ChangeJournal::kCapacity; ++i) REQUIRE(other->journal().append(news_of(i)) == 0);
  pages.poll_journal();
  REQUIRE(pages.has_missed_changes());
  pages.rescan();
  REQUIRE_FALSE(pages.has_missed_changes());
  REQUIRE(pages.index().page_count() == 0);
}

TEST_CASE("the bound of a folder holds for all its writers") {
  const TempFolder folder;
  StoreWorld world;
  const auto one = open_shared_store(world, folder);
  const auto two = open_shared_store(world, folder);
  for (uint64_t round = 0; round < 12; ++round) {
    PageStore& store = round % 3 == 0 ? *two : *one;
    REQUIRE(world.put_all(store, 5 * round, 5) == 5);
    REQUIRE(count_pages(folder) == std::min(5 * (round + 1), kMaxPages));
  }
  for (uint64_t number = 0; number < 60; ++number) REQUIRE(world.exists(*one, number) == (number >= 40));
  REQUIRE(one->stats().evicted + two->stats().evicted == 40);
  REQUIRE(one->stats().refused + two->stats().refused == 0);
  REQUIRE(two->stats().bytes_stored <= kMaxPages * kRecordBytes);
  const auto late = open_shared_store(world, folder);
  REQUIRE(world.put_all(*late, 100, 5) == 5);
  REQUIRE(world.put_all(*two, 200, 5) == 5);
  REQUIRE(world.put_all(*one, 300, 5) == 5);
  REQUIRE(count_pages(folder) == kMaxPages);
}

TEST_CASE("servers that put at once stay within the bound together") {
  const TempFolder folder;
  StoreWorld world;
  const auto one = open_shared_store(world, folder);
  for (uint64_t round = 0; round < 10; ++round) {
    size_t stored[2] = {0, 0};
    std::thread other([&] {
      StoreWorld own;
      const auto two = open_shared_store(own, folder);
      stored[1] = own.put_all(*two, 1000 * round + 500, 60);
    });
    stored[0] = world.put_all(*one, 1000 * round, 60);
    other.join();
    INFO("round " << round << ": " << stored[0] << " and " << stored[1]);
    REQUIRE(stored[0] + stored[1] > 0);
    REQUIRE(count_pages(folder) <= kMaxPages);
  }
  REQUIRE(world.put(*one, 1'000'000));
  REQUIRE(count_pages(folder) <= kMaxPages);
}

namespace {

/// Puts five pages, from `first` on, for each byte that comes, and answers it. Ends with the process.
void put_on_demand(const TempFolder& folder, uint64_t first, int from, int to) {
  StoreWorld world;
  const auto store = open_shared_store(world, folder);
  for (char word = 0; write(to, &word, 1) == 1 && read(from, &word, 1) == 1; first += 5) {
    if (world.put_all(*store, first, 5) != 5) return;
  }
}

}  // namespace

TEST_CASE("the bound holds for a directory that two processes use") {
  const TempFolder folder;
  int to_child[2];
  int to_parent[2];
  REQUIRE(pipe2(to_child, O_CLOEXEC) == 0);
  REQUIRE(pipe2(to_parent, O_CLOEXEC) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(to_child[1]);
    put_on_demand(folder, 1000, to_child[0], to_parent[1]);
    _exit(0);
  }
  close(to_parent[1]);
  StoreWorld world;
  const auto store = open_shared_store(world, folder);
  char word = 0;
  REQUIRE(read(to_parent[0], &word, 1) == 1);
  for (uint64_t round = 0; round < 8; ++round) {
    REQUIRE(world.put_all(*store, 5 * round, 5) == 5);
    REQUIRE(count_pages(folder) <= kMaxPages);
    REQUIRE(write(to_child[1], &word, 1) == 1);
    REQUIRE(read(to_parent[0], &word, 1) == 1);
    REQUIRE(count_pages(folder) == std::min(10 * (round + 1), kMaxPages));
  }
  close(to_child[1]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  close(to_child[0]);
  close(to_parent[0]);
}
