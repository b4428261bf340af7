#include "cache/prefix_cache.h"

#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <memory>
#include <numeric>

using namespace millrace;
using namespace millrace::cache;

namespace {

constexpr uint32_t kPageSize = 4;

/// `pages` pages of a prompt that shares none with those of other numbers.
std::vector<TokenId> prompt(int32_t number, size_t pages) {
  std::vector<TokenId> tokens(pages * kPageSize);
  std::iota(tokens.begin(), tokens.end(), number * 1000);
  return tokens;
}

/// The only stage of a ring: every copy succeeds at once, but those to the store are still under way.
void run_copies(PrefixCache& cache) {
  while (cache.has_copies()) {
    for (const PageCopy& copy : cache.take_copies()) {
      if (copy.kind == CopyKind::kPersist) continue;
      const auto done = static_cast<uint32_t>(copy.page_count());
      REQUIRE_FALSE(cache.acknowledge({copy.id, done}).has_error());
    }
  }
}

/// Runs a prompt as the scheduler does; returns how many of its pages were known.
uint32_t use(PrefixCache& cache, const std::vector<TokenId>& tokens) {
  PageTable page_table;
  RadixTree::Match match;
  for (;;) {
    match = cache.match("", tokens);
    if (cache.acquire(page_table, "", match, tokens.size() / kPageSize)) break;
    REQUIRE(cache.has_copies());
    run_copies(cache);
  }
  cache.publish(page_table, tokens);
  const PageTable* holders[] = {&page_table};
  cache.check_invariants(holders);
  run_copies(cache);
  cache.release(page_table);
  cache.check_invariants({});
  return match.pages;
}

}  // namespace

TEST_CASE("write-back evicts the coldest host pages for a large prompt") {
  PrefixCache cache(
      {.page_size = kPageSize, .page_count = 6, .host_page_count = 4, .write_policy = WritePolicy::kWriteBack});
  for (int32_t number = 0; number < 5; ++number) REQUIRE(use(cache, prompt(number, 2)) == 0);
  REQUIRE(use(cache, prompt(0, 2)) == 2);
  REQUIRE(use(cache, prompt(9, 6)) == 0);
  for (const int32_t cold : {1, 2, 3}) REQUIRE(cache.match("", prompt(cold, 2)).pages == 0);
  for (const int32_t warm : {4, 0}) REQUIRE(cache.match("", prompt(warm, 2)).pages == 2);
}

TEST_CASE("a page on its way to the store keeps its place on the host") {
  PrefixCache cache({.page_size = kPageSize, .page_count = 4, .host_page_count = 8, .has_store = true});
  for (int32_t number = 0; number < 10; ++number) REQUIRE(use(cache, prompt(number, 2)) == 0);
  REQUIRE(cache.counts().unpersisted_pages == 18);  // the store may be behind by two
  REQUIRE(cache.match("", prompt(0, 2)).pages == 2);
  REQUIRE(cache.match("", prompt(6, 2)).pages == 0);
  REQUIRE(cache.match("", prompt(7, 2)).pages == 2);
}

TEST_CASE("a host page is not reused before its persist has ended") {
  PrefixCache cache({.page_size = kPageSize, .page_count = 2, .host_page_count = 1, .has_store = true});
  run_copies(cache);
  const auto compute = [&](const std::vector<TokenId>& tokens) {
    PageTable page_table;
    REQUIRE(cache.acquire(page_table, "", cache.match("", tokens), tokens.size() / kPageSize));
    cache.publish(page_table, tokens);
    auto copies = cache.take_copies();
    cache.release(page_table);
    cache.check_invariants({});
    return copies;
  };
  const auto end = [&](const std::vector<PageCopy>& copies, CopyKind kind) {
    REQUIRE(copies.size() == 1);
    REQUIRE(copies[0].kind == kind);
    REQUIRE_FALSE(cache.acknowledge({copies[0].id, 1}).has_error());
    return cache.take_copies();
  };
  const auto tokens = prompt(2, 2);
  const auto filling = compute(prompt(1, 1));
  REQUIRE(compute({tokens.begin(), tokens.begin() + kPageSize}).empty());  // the host has no room for it
  REQUIRE(end(end(filling, CopyKind::kStore), CopyKind::kPersist).empty());
  const auto persist = end(compute(tokens), CopyKind::kStore);
  REQUIRE(compute(prompt(3, 2)).empty());
  REQUIRE(cache.match("", tokens).pages == 0);
  REQUIRE(cache.cached_host_pages() == 0);
  REQUIRE(end(persist, CopyKind::kPersist).empty());
  REQUIRE(end(compute(prompt(4, 1)), CopyKind::kStore).size() == 1);
}

TEST_CASE("a flush is refused while pages are used or copied") {
  PrefixCache cache({.page_size = kPageSize, .page_count = 4, .host_page_count = 4});
  run_copies(cache);
  const auto tokens = prompt(1, 2);
  PageTable page_table;
  REQUIRE(cache.acquire(page_table, "", cache.match("", tokens), 2));
  cache.publish(page_table, tokens);
  run_copies(cache);
  REQUIRE_FALSE(cache.flush());
  REQUIRE(cache.match("", tokens).pages == 2);
  cache.release(page_table);
  REQUIRE(cache.flush());
  REQUIRE(cache.match("", tokens).pages == 0);
  REQUIRE(cache.cached_host_pages() == 0);
  REQUIRE(cache.acquire(page_table, "", cache.match("", tokens), 2));
  cache.publish(page_table, tokens);
  cache.release(page_table);
  REQUIRE_FALSE(cache.flush());  // the pages are to be stored
  const auto copies = cache.take_copies();
  REQUIRE_FALSE(cache.flush());  // they are being stored
  REQUIRE_FALSE(cache.acknowledge({copies.at(0).id, 2}).has_error());
  REQUIRE(cache.flush());
  cache.check_invariants({});
}

TEST_CASE("pages that a stage could not store are promised to nobody") {
  PrefixCache cache(
      {.page_size = kPageSize, .page_count = 2, .host_page_count = 2, .write_policy = WritePolicy::kWriteBack});
  run_copies(cache);
  REQUIRE(use(cache, prompt(1, 2)) == 0);
  PageTable page_table;
  for (const uint32_t done : {0, 1, 2}) {
    REQUIRE_FALSE(cache.acquire(page_table, "", cache.match("", prompt(2, 2)), 2));
    const auto copies = cache.take_copies();
    REQUIRE(copies.size() == 1);
    const auto count = static_cast<uint32_t>(copies[0].page_count());
    REQUIRE(count == (done < 2 ? 2 : 1));
    REQUIRE(cache.writing_back());
    REQUIRE_FALSE(cache.acknowledge({copies[0].id, std::min(done, count)}).has_error());
    REQUIRE_FALSE(cache.writing_back());
    cache.check_invariants({});
  }
  REQUIRE(cache.acquire(page_table, "", cache.match("", prompt(2, 2)), 2));
  REQUIRE(cache.cached_host_pages() == 2);
  cache.release(page_table);
}

TEST_CASE("a match costs only the available pages that nobody uses now") {
  PrefixCache cache({.page_size = kPageSize, .page_count = 8});
  (void)use(cache, prompt(1, 4));
  const RadixTree::Match match = cache.match("", prompt(1, 4));
  REQUIRE(cache.available_after(match) == 4);
  PageTable first;
  REQUIRE(cache.acquire(first, "", match, 8));
  REQUIRE(cache.available_pages() == 0);
  REQUIRE(cache.available_after(match) == 0);
  cache.release(first);
  REQUIRE(cache.available_after(match) == 4);
}

namespace {

/// A cache with a store behind it, whose copies are answered one by one.
struct Fetching {
  Fetching() : cache({.page_size = kPageSize, .page_count = 16, .host_page_count = 32, .has_store = true}) {
    run_copies(cache);
  }

  void want(uint64_t id, const std::vector<TokenId>& tokens) {
    cache.prefetch(SequenceId(id), "", tokens, holdings[id]);
    collect();
  }
  /// Answers the oldest copy, which has to be of this kind, with `done` good pages; how many it was of.
  size_t answer(CopyKind kind, size_t done) {
    REQUIRE_FALSE(copies.empty());
    const PageCopy copy = copies.front();
    copies.pop_front();
    REQUIRE(copy.kind == kind);
    REQUIRE_FALSE(cache.acknowledge({copy.id, static_cast<uint32_t>(done)}).has_error());
    collect();
    cache.check_invariants({});
    return copy.page_count();
  }
  [[nodiscard]] size_t known(const std::vector<TokenId>& tokens) const { return cache.match("", tokens).pages; }

  PrefixCache cache;
  std::map<uint64_t, PageTable> holdings;
  std::deque<PageCopy> copies;

 private:
  void collect() {
    for (PageCopy& copy : cache.take_copies()) copies.push_back(std::move(copy));
  }
};

}  // namespace

TEST_CASE("pages that several waiting prompts share are fetched once") {
  Fetching world;
  const auto whole = prompt(1, 6);
  const std::vector<TokenId> part(whole.begin(), whole.begin() + 4 * kPageSize);
  world.want(1, part);
  world.want(2, whole);
  world.want(3, part);
  for (const size_t pages : {4, 6, 4}) REQUIRE(world.answer(CopyKind::kProbe, pages) == pages);
  REQUIRE(world.copies.size() == 1);
  for (const uint64_t id : {1, 2, 3}) REQUIRE(world.cache.prefetching(SequenceId(id)));
  REQUIRE(world.answer(CopyKind::kFetch, 4) == 4);
  REQUIRE(world.known(whole) == 4);
  REQUIRE_FALSE(world.cache.prefetching(SequenceId(3)));
  REQUIRE(world.cache.prefetching(SequenceId(2)));
  REQUIRE(world.answer(CopyKind::kFetch, 2) == 2);
  REQUIRE(world.known(whole) == 6);
  REQUIRE(world.cache.counts().fetched_pages == 6);
  REQUIRE(world.copies.empty());
  REQUIRE(world.cache.flush());
}

TEST_CASE("a request that awaited a foreign fetch retries or gives up") {
  Fetching world;
  const auto tokens = prompt(1, 5);
  for (const uint64_t id : {1, 2, 3}) world.want(id, tokens);
  for (int i = 0; i < 3; ++i) (void)world.answer(CopyKind::kProbe, 5);
  world.cache.stop_prefetch(SequenceId(3));
  REQUIRE_FALSE(world.cache.prefetching(SequenceId(3)));
  REQUIRE(world.answer(CopyKind::kFetch, 2) == 5);
  REQUIRE(world.known(tokens) == 2);
  REQUIRE_FALSE(world.cache.prefetching(SequenceId(1)));
  REQUIRE(world.answer(CopyKind::kFetch, 0) == 3);
  REQUIRE(world.known(tokens) == 2);
  REQUIRE(world.copies.empty());
  REQUIRE(world.cache.flush());
}

TEST_CASE("pages computed since the probe are not fetched") {
  Fetching world;
  const auto tokens = prompt(1, 5);
  world.want(1, tokens);
  (void)use(world.cache, {tokens.begin(), tokens.begin() + 3 * kPageSize});
  REQUIRE(world.answer(CopyKind::kProbe, 5) == 5);
  REQUIRE(world.answer(CopyKind::kFetch, 2) == 2);
  REQUIRE(world.known(tokens) == 5);
  (void)use(world.cache, tokens);
  world.want(2, prompt(2, 2));
  (void)use(world.cache, prompt(2, 2));
  REQUIRE(world.answer(CopyKind::kProbe, 2) == 2);
  REQUIRE(world.copies.empty());
  REQUIRE_FALSE(world.cache.prefetching(SequenceId(2)));
}

TEST_CASE("fetches fill at most half of the host tier and leave room") {
  Fetching world;
  for (uint64_t round = 0; round < 5; ++round) {
    const uint64_t first = 3 * round;
    for (uint64_t id = first; id < first + 3; ++id) world.want(id, prompt(static_cast<int32_t>(id), 10));
    for (int i = 0; i < 3; ++i) REQUIRE(world.answer(CopyKind::kProbe, 10) == 10);
    REQUIRE(world.copies.size() == 2);
    REQUIRE_FALSE(world.cache.prefetching(SequenceId(first + 2)));
    REQUIRE(world.answer(CopyKind::kFetch, 0) == 10);
    REQUIRE(world.answer(CopyKind::kFetch, 1) == 6);
    REQUIRE(world.cache.counts().fetched_pages == round + 1);
    REQUIRE(world.copies.empty());
  }
  REQUIRE(world.cache.cached_host_pages() == 5);
}

TEST_CASE("no probe and no fetch for a request that stopped waiting") {
  Fetching world;
  const auto tokens = prompt(1, 5);
  PageTable page_table;
  world.cache.prefetch(SequenceId(1), "", tokens, page_table);
  world.cache.stop_prefetch(SequenceId(1));
  REQUIRE_FALSE(world.cache.has_copies());
  REQUIRE_FALSE(world.cache.has_pending_copies());
  world.want(2, tokens);
  world.cache.stop_prefetch(SequenceId(2));
  REQUIRE(world.answer(CopyKind::kProbe, 5) == 5);
  REQUIRE(world.copies.empty());
  REQUIRE_FALSE(world.cache.prefetching(SequenceId(2)));
  // What is under way ends, and is of use to the next.
  world.want(3, tokens);
  (void)world.answer(CopyKind::kProbe, 5);
  world.cache.stop_prefetch(SequenceId(3));
  REQUIRE(world.answer(CopyKind::kFetch, 5) == 5);
  REQUIRE_FALSE(world.cache.prefetching(SequenceId(3)));
  REQUIRE(world.known(tokens) == 5);
  REQUIRE(world.cache.flush());
}

TEST_CASE("a page after fetched pages is persisted under its full key") {
  Fetching world;
  const auto tokens = prompt(1, 4);
  PageKey wanted = root_key("");
  for (size_t i = 0; i < 4; ++i) wanted = child_key(wanted, std::span(tokens).subspan(i * kPageSize, kPageSize));
  world.want(1, {tokens.begin(), tokens.begin() + 3 * kPageSize});
  (void)world.answer(CopyKind::kProbe, 3);
  (void)world.answer(CopyKind::kFetch, 3);
  PageTable page_table;
  REQUIRE(world.cache.acquire(page_table, "", world.cache.match("", tokens), 4));
  world.cache.publish(page_table, tokens);
  std::vector<PageKey> keys;
  while (world.cache.has_copies()) {
    for (const PageCopy& copy : world.cache.take_copies()) {
      keys.insert(keys.end(), copy.keys.begin(), copy.keys.end());
      const auto done = static_cast<uint32_t>(copy.page_count());
      REQUIRE_FALSE(world.cache.acknowledge({copy.id, done}).has_error());
    }
  }
  REQUIRE(keys == std::vector<PageKey>{wanted});
  world.cache.release(page_table);
}

namespace {

/// Two prompts on the host and one on the device only; then the ring breaks.
std::unique_ptr<PrefixCache> broken_cache() {
  auto made =
      std::make_unique<PrefixCache>(PrefixCacheOptions{.page_size = kPageSize, .page_count = 16, .host_page_count = 6});
  PrefixCache& cache = *made;
  for (const int32_t number : {1, 2, 3}) {
    const auto tokens = prompt(number, 2);
    PageTable page_table;
    REQUIRE(cache.acquire(page_table, "", cache.match("", tokens), 2));
    cache.publish(page_table, tokens);
    for (const PageCopy& copy : cache.take_copies()) {
      const auto done = static_cast<uint32_t>(copy.page_count());
      if (number < 3) REQUIRE_FALSE(cache.acknowledge({copy.id, done}).has_error());
    }
    cache.release(page_table);
  }
  REQUIRE(cache.has_pending_copies());
  cache.on_ring_lost();
  cache.check_invariants({});
  REQUIRE(cache.cached_pages() == 0);
  REQUIRE(cache.available_pages() == 16);
  return made;
}

}  // namespace

TEST_CASE("host pages survive a break once all stages verify them") {
  for (const uint32_t held : {0, 3, 4}) {
    CAPTURE(held);
    const auto broken = broken_cache();
    PrefixCache& cache = *broken;
    REQUIRE(cache.verifying());
    const auto copies = cache.take_copies();
    REQUIRE(copies.size() == 1);
    REQUIRE(copies[0].kind == CopyKind::kVerify);
    REQUIRE(copies[0].page_count() == 4);
    REQUIRE(copies[0].previous_verify != CopyId(0));  // the question after nothing, which was asked at the start
    REQUIRE_FALSE(cache.acknowledge({copies[0].id, held}).has_error());
    REQUIRE_FALSE(cache.verifying());
    cache.check_invariants({});
    REQUIRE(cache.cached_host_pages() == (held == 4 ? 4 : 0));
    for (const int32_t number : {1, 2}) REQUIRE(cache.match("", prompt(number, 2)).pages == (held == 4 ? 2 : 0));
    REQUIRE(cache.match("", prompt(3, 2)).pages == 0);
  }
}

TEST_CASE("pools of other sizes begin empty and verify anew") {
  for (const PoolSizes pages : {PoolSizes{.device = 4, .host = 3}, PoolSizes{.device = 40, .host = 60}}) {
    CAPTURE(pages.device);
    const auto broken = broken_cache();
    PrefixCache& cache = *broken;
    const uint64_t version = cache.version();
    cache.resize(pages);
    cache.check_invariants({});
    REQUIRE(cache.version() > version);
    REQUIRE(cache.page_count() == pages.device);
    REQUIRE(cache.available_pages() == pages.device);
    REQUIRE(cache.host_page_count() == pages.host);
    REQUIRE(cache.cached_host_pages() == 0);
    const auto copies = cache.take_copies();
    REQUIRE(copies.size() == 1);  // only the question that asks for nothing
    REQUIRE(copies[0].page_count() == 0);
    REQUIRE_FALSE(cache.acknowledge({copies[0].id, 0}).has_error());
    REQUIRE_FALSE(cache.verifying());
    REQUIRE(use(cache, prompt(1, 4)) == 0);
    REQUIRE(use(cache, prompt(1, 4)) == 4);
  }
}

TEST_CASE("a break gives back the host pages of every copy under way") {
  Fetching world;
  for (const uint64_t id : {1, 2}) world.want(id, prompt(static_cast<int32_t>(id), 4));
  (void)world.answer(CopyKind::kProbe, 4);  // the first is being fetched, the second asked after
  const auto tokens = prompt(3, 2);
  PageTable page_table;
  REQUIRE(world.cache.acquire(page_table, "", world.cache.match("", tokens), 2));
  world.cache.publish(page_table, tokens);
  REQUIRE(world.cache.take_copies().at(0).kind == CopyKind::kStore);
  world.cache.release(page_table);
  world.cache.on_ring_lost();
  world.cache.check_invariants({});
  for (const uint64_t id : {1, 2}) REQUIRE_FALSE(world.cache.prefetching(SequenceId(id)));
  run_copies(world.cache);
  REQUIRE_FALSE(world.cache.verifying());
  // All of the host tier can be had again: half of it for a fetch.
  world.copies.clear();
  world.want(4, prompt(4, 40));
  (void)world.answer(CopyKind::kProbe, 40);
  REQUIRE(world.answer(CopyKind::kFetch, 16) == 16);
  REQUIRE(world.cache.cached_host_pages() == 16);
}

TEST_CASE("a break during verification makes the next ring verify") {
  const auto broken = broken_cache();
  PrefixCache& cache = *broken;
  const CopyId first = cache.take_copies().front().id;
  cache.on_ring_lost();
  REQUIRE(cache.verifying());
  REQUIRE(cache.acknowledge({first, 4}).has_error());
  const auto copies = cache.take_copies();
  REQUIRE(copies.size() == 1);
  REQUIRE(copies[0].previous_verify == first);
  REQUIRE(cache.flush());
  REQUIRE(cache.cached_host_pages() == 0);
  REQUIRE_FALSE(cache.acknowledge({copies[0].id, 4}).has_error());
  REQUIRE_FALSE(cache.verifying());
  REQUIRE(cache.cached_host_pages() == 0);
}

TEST_CASE("no plan carries more copies than fit and none is lost") {
  PrefixCache cache({.page_size = 1, .page_count = 300'000, .host_page_count = 200'000, .has_store = true});
  std::vector<TokenId> tokens(20'000);
  std::map<uint64_t, PageTable> holdings;
  for (uint64_t id = 1; id <= 10; ++id) {
    std::iota(tokens.begin(), tokens.end(), static_cast<TokenId>(id * 20'000));
    cache.prefetch(SequenceId(id), "", tokens, holdings[id]);
  }
  std::vector<TokenId> longest(100'000, 7);
  cache.prefetch(SequenceId(11), "", longest, holdings[11]);
  size_t copies = 0;
  size_t plans = 0;
  for (; cache.has_copies(); ++plans) {
    size_t keys = 0;
    for (const PageCopy& copy : cache.take_copies()) {
      keys += copy.keys.size();
      ++copies;
      REQUIRE_FALSE(cache.acknowledge({copy.id, 0}).has_error());
    }
    REQUIRE(keys * sizeof(PageKey) < size_t{4} << 20);
  }
  REQUIRE(copies == 12);  // and a question what is held
  REQUIRE(plans > 3);

  std::vector<PageTable> held(1);
  std::iota(tokens.begin(), tokens.end(), 0);
  tokens.resize(100'000, 9);
  REQUIRE(cache.acquire(held[0], "", cache.match("", tokens), tokens.size()));
  cache.publish(held[0], tokens);
  run_copies(cache);
  cache.release(held[0]);
  REQUIRE(cache.cached_host_pages() == tokens.size());
  cache.on_ring_lost();
  size_t asked = 0;
  for (; cache.verifying(); ++plans) {
    const auto questions = cache.take_copies();
    REQUIRE(questions.size() == 1);
    asked += questions[0].page_count();
    REQUIRE_FALSE(cache.acknowledge({questions[0].id, static_cast<uint32_t>(questions[0].page_count())}).has_error());
  }
  REQUIRE(asked == tokens.size());
  REQUIRE(cache.match("", tokens).pages == tokens.size());
}

TEST_CASE("keys hashed for the store match pages computed later") {
  PrefixCacheOptions options{.page_size = kPageSize, .page_count = 8, .host_page_count = 8, .has_store = true};
  const auto tokens = prompt(1, 3);
  const auto persisted = [&](bool is_hashed) {
    PrefixCache cache(options);
    (void)use(cache, {tokens.begin(), tokens.begin() + kPageSize});
    PageTable page_table;
    if (is_hashed) cache.prefetch(SequenceId(1), "", tokens, page_table);
    cache.stop_prefetch(SequenceId(1));
    REQUIRE(page_table.keys.size() == (is_hashed ? 2 : 0));
    REQUIRE(cache.acquire(page_table, "", cache.match("", tokens), 3));
    cache.publish(page_table, tokens);
    std::vector<PageKey> keys;
    while (cache.has_copies()) {
      for (const PageCopy& copy : cache.take_copies()) {
        keys.insert(keys.end(), copy.keys.begin(), copy.keys.end());
        const auto done = static_cast<uint32_t>(copy.page_count());
        REQUIRE_FALSE(cache.acknowledge({copy.id, done}).has_error());
      }
    }
    return keys;
  };
  REQUIRE(persisted(true).size() == 1);
  REQUIRE(persisted(true) == persisted(false));
}
