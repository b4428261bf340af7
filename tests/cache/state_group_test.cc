#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "cache/pool_division.h"
#include "cache/prefix_cache.h"

using namespace millrace;
using namespace millrace::cache;

namespace {

constexpr uint32_t kPageSize = 4;

std::vector<TokenId> prompt(int32_t number, size_t tokens) {
  std::vector<TokenId> made(tokens);
  std::iota(made.begin(), made.end(), number * 1000);
  return made;
}

size_t pages_of(size_t tokens) {
  return (tokens + kPageSize - 1) / kPageSize;
}

PrefixCacheOptions options_with(uint32_t state_pages, uint32_t snapshot_pages = 0) {
  const WindowPool states{
      .window = state_window(kPageSize), .pages = {.device = state_pages}, .kind = GroupKind::kState};
  return {.page_size = kPageSize, .page_count = 400, .windows = {states}, .snapshot_pages = snapshot_pages};
}

/// A sequence that runs in plans of its own.
struct Run {
  /// The cache has no other holder while it runs.
  Run(PrefixCache& run_cache, std::vector<TokenId> prompt_tokens)
      : cache(run_cache), tokens(std::move(prompt_tokens)), prompt_length(tokens.size()) {}

  /// Admits it with a first chunk; returns the tokens that were known.
  size_t begin(size_t chunk) {
    const auto match = cache.match("", std::span(tokens).first(tokens.size() - 1));
    done = size_t{match.pages} * kPageSize;
    const size_t known = done;
    REQUIRE(cache.acquire(table, "", match, pages_of(tokens.size()), pages_of(std::min(done + chunk, tokens.size()))));
    take(chunk);
    return known;
  }
  /// Makes a plan of the next tokens.
  void take(size_t chunk) {
    const size_t before = std::exchange(done, std::min(done + chunk, tokens.size()));
    while (table.pages.size() < pages_of(done)) REQUIRE(cache.extend(table));
    REQUIRE(cache.extend_windows(table, pages_of(done), before));
    const bool ends_prompt = before < prompt_length && done >= prompt_length;
    cache.publish(table, std::span(tokens).first(done), ends_prompt);
    cache.advance_windows(table, done);
    cache.end_plan();
    const PageTable* holders[] = {&table};
    cache.check_invariants(holders);
  }
  /// Samples tokens one by one.
  void decode(size_t count) {
    for (; count > 0; --count) {
      tokens.push_back(static_cast<TokenId>(count));
      take(1);
    }
  }
  size_t run(size_t chunk) {
    const size_t known = begin(chunk);
    while (done < tokens.size()) take(chunk);
    return known;
  }
  [[nodiscard]] size_t state_pages() const {
    return static_cast<size_t>(
        std::ranges::count_if(table.windows[0].entries, [](const auto& one) { return one.page != kNoPage; }));
  }

  PrefixCache& cache;
  std::vector<TokenId> tokens;
  size_t prompt_length;
  size_t done = 0;
  PageTable table;
};

std::vector<TokenId> longer(std::vector<TokenId> tokens, size_t count, TokenId token) {
  tokens.resize(tokens.size() + count, token);
  return tokens;
}

}  // namespace

TEST_CASE("a sequence with states needs two pages however long it is") {
  for (const bool shares : {true, false}) {
    PrefixCacheOptions options = options_with(2);
    options.share_prefixes = shares;
    PrefixCache cache(options);
    for (const size_t chunk : {3, 4, 30}) {
      Run one(cache, prompt(static_cast<int32_t>(chunk), 100));
      REQUIRE(one.run(chunk) == 0);
      for (int step = 0; step < 200; ++step) {
        one.decode(1);
        REQUIRE(one.state_pages() <= 2);
      }
      cache.release(one.table);
      cache.check_invariants({});
    }
    REQUIRE(cache.windows()[0]->account().available_pages() == 2);
  }
}

TEST_CASE("the next turn goes on from the end of the turn before") {
  PrefixCache cache(options_with(10));
  Run first(cache, prompt(1, 102));
  REQUIRE(first.run(16) == 0);
  first.decode(31);
  cache.release(first.table);
  Run second(cache, longer(first.tokens, 9, 7));
  REQUIRE(second.run(16) == 132);
  cache.release(second.table);
  // A turn that drops the output goes on from the end of the prompt.
  Run other(cache, longer(prompt(1, 102), 30, 8));
  REQUIRE(other.run(16) == 100);
  cache.release(other.table);
}

TEST_CASE("the same prompt again finds all pages but the last") {
  for (const size_t length : {41, 44}) {
    PrefixCache cache(options_with(10));
    Run first(cache, prompt(1, length));
    REQUIRE(first.run(16) == 0);
    cache.release(first.table);
    Run second(cache, prompt(1, length));
    REQUIRE(second.run(16) == 40);
    cache.release(second.table);
    cache.check_invariants({});
  }
}

TEST_CASE("the second prompt that branches off leaves a snapshot there") {
  PrefixCache cache(options_with(20));
  const std::vector<TokenId> common = prompt(1, 42);
  for (int32_t i = 0; i < 4; ++i) {
    Run one(cache, longer(common, 30, 9 + i));
    REQUIRE(one.run(16) == (i < 2 ? 0 : 40));
    cache.release(one.table);
  }
}

TEST_CASE("periodic snapshots are taken every so many pages") {
  PrefixCache cache(options_with(20, 3));
  Run first(cache, prompt(1, 100));
  REQUIRE(first.run(64) == 0);
  cache.release(first.table);
  for (const auto& [common, known] : {std::pair{95, 84}, {83, 72}, {30, 24}, {11, 0}}) {
    std::vector<TokenId> tokens(first.tokens.begin(), first.tokens.begin() + common);
    REQUIRE(cache.match("", longer(tokens, 20, 5)).pages * kPageSize == static_cast<uint32_t>(known));
  }
}

TEST_CASE("a sequence that is sent back goes on from its last snapshot") {
  PrefixCache cache(options_with(4));
  Run one(cache, prompt(1, 100));
  REQUIRE(one.begin(18) == 0);
  one.take(18);  // 36 tokens
  cache.release(one.table);
  REQUIRE(Run(cache, one.tokens).cache.match("", one.tokens).pages == 9);
  Run again(cache, one.tokens);
  REQUIRE(again.run(18) == 36);
  cache.release(again.table);
}

TEST_CASE("only later plans read the snapshots of a plan") {
  PrefixCache cache(options_with(10));
  Run one(cache, prompt(1, 42));
  const auto match = cache.match("", one.tokens);
  REQUIRE(cache.acquire(one.table, "", match, pages_of(42), pages_of(42)));
  cache.publish(one.table, one.tokens, true);
  const auto found = cache.match("", one.tokens);
  REQUIRE(found.pages == 10);
  REQUIRE(cache.is_fresh(found));
  cache.end_plan();
  REQUIRE_FALSE(cache.is_fresh(found));
  cache.release(one.table);
  REQUIRE_FALSE(cache.is_fresh(cache.match("", one.tokens)));
}

TEST_CASE("snapshots make way for sequences that run") {
  PrefixCache cache(options_with(5));
  for (int32_t i = 0; i < 6; ++i) {
    Run one(cache, prompt(i, 40));
    REQUIRE(one.run(16) == 0);
    cache.release(one.table);
  }
  REQUIRE(cache.windows()[0]->account().counts().evicted_device_pages > 0);
  Run first(cache, prompt(20, 200));
  Run second(cache, prompt(21, 200));
  for (Run* one : {&first, &second}) {
    REQUIRE(cache.acquire(one->table, "", cache.match("", one->tokens), 50, 25));
  }
  const PageTable* holders[] = {&first.table, &second.table};
  cache.check_invariants(holders);
  cache.release(first.table);
  cache.release(second.table);
  cache.check_invariants({});
}

namespace {

/// The only stage of a ring, with a page store.
struct StageWithStore {
  std::map<uint32_t, std::set<PageKey>> keys;  // by cache group

  [[nodiscard]] uint32_t good_pages(const PageCopy& copy) {
    std::set<PageKey>& stored = keys[copy.group];
    const auto is_stored = [&](const PageKey& key) { return stored.contains(key); };
    if (copy.kind == CopyKind::kPersist) stored.insert(copy.keys.begin(), copy.keys.end());
    if (copy.kind == CopyKind::kProbe && copy.group == 1) {
      const auto last = std::find_if(copy.keys.rbegin(), copy.keys.rend(), is_stored);
      return static_cast<uint32_t>(copy.keys.rend() - last);
    }
    if (copy.kind != CopyKind::kProbe && copy.kind != CopyKind::kFetch) {
      return static_cast<uint32_t>(copy.page_count());
    }
    return static_cast<uint32_t>(std::ranges::find_if_not(copy.keys, is_stored) - copy.keys.begin());
  }
  void run_copies(PrefixCache& cache, std::span<const PageTable* const> holders = {}) {
    while (cache.has_copies()) {
      for (const PageCopy& copy : cache.take_copies()) {
        REQUIRE_FALSE(cache.acknowledge({copy.id, good_pages(copy)}).has_error());
        cache.check_invariants(holders);
      }
    }
  }
};

}  // namespace

TEST_CASE("a prefetch ends at the deepest snapshot of the store") {
  PrefixCacheOptions options = options_with(10, 5);
  options.windows[0].pages.host = 100;
  options.host_page_count = 200;
  options.has_store = true;
  StageWithStore stage;
  PrefixCache cache(options);
  stage.run_copies(cache);
  Run first(cache, prompt(1, 102));
  REQUIRE(first.begin(16) == 0);
  const PageTable* holders[] = {&first.table};
  while (first.done < first.tokens.size()) {
    stage.run_copies(cache, holders);
    first.take(16);
  }
  cache.release(first.table);
  stage.run_copies(cache);
  REQUIRE(cache.flush());
  const auto prefetched = [&](const std::vector<TokenId>& tokens) {
    PageTable table;
    cache.prefetch(SequenceId(1), "", std::span(tokens).first(tokens.size() - 1), table);
    stage.run_copies(cache);
    REQUIRE_FALSE(cache.prefetching(SequenceId(1)));
    return cache.match("", tokens).pages;
  };
  std::vector<TokenId> branch = prompt(1, 70);
  branch.resize(90, 8);
  REQUIRE(prefetched(branch) == 15);
  REQUIRE(cache.cached_host_pages() == 15);  // those after the snapshot would be computed again
  REQUIRE(prefetched(longer(first.tokens, 9, 7)) == 25);
  // What is known to its end may still lack a snapshot.
  cache.windows()[0]->clear();
  branch.assign(first.tokens.begin(), first.tokens.begin() + 62);
  REQUIRE(cache.match("", branch).pages == 0);
  REQUIRE(prefetched(branch) == 15);
  // Nothing is fetched for a prefix without any.
  stage.keys[1].clear();
  REQUIRE(cache.flush());
  REQUIRE(prefetched(branch) == 0);
  REQUIRE(cache.cached_host_pages() == 0);
}
