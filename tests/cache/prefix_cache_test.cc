#include "cache/prefix_cache.h"

#include <catch2/catch.hpp>
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
      REQUIRE_FALSE(cache.acknowledge({StageId(0), copy.id, done}).has_error());
    }
  }
}

/// Runs a prompt as the scheduler does; returns how many of its pages were known.
uint32_t use(PrefixCache& cache, const std::vector<TokenId>& tokens) {
  PageHolding holding;
  RadixTree::Match match;
  for (;;) {
    match = cache.match("", tokens);
    if (cache.acquire(holding, "", match, tokens.size() / kPageSize)) break;
    REQUIRE(cache.has_copies());
    run_copies(cache);
  }
  cache.publish(holding, tokens);
  const PageHolding* holders[] = {&holding};
  cache.check_invariants(holders);
  run_copies(cache);
  cache.release(holding);
  cache.check_invariants({});
  return match.pages;
}

}  // namespace

TEST_CASE("written back, a prompt larger than the host pushes out the coldest pages, not the warmest") {
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

TEST_CASE("keys hashed for the store are those of the pages that are computed later") {
  PrefixCacheOptions options{.page_size = kPageSize, .page_count = 8, .host_page_count = 8, .has_store = true};
  const auto tokens = prompt(1, 3);
  const auto persisted = [&](bool is_hashed) {
    PrefixCache cache(options);
    (void)use(cache, {tokens.begin(), tokens.begin() + kPageSize});
    PageHolding holding;
    if (is_hashed) cache.prefetch(SequenceId(1), "", tokens, holding);
    cache.stop_prefetch(SequenceId(1));
    REQUIRE(holding.keys.size() == (is_hashed ? 2 : 0));
    REQUIRE(cache.acquire(holding, "", cache.match("", tokens), 3));
    cache.publish(holding, tokens);
    std::vector<PageKey> keys;
    while (cache.has_copies()) {
      for (const PageCopy& copy : cache.take_copies()) {
        keys.insert(keys.end(), copy.keys.begin(), copy.keys.end());
        const auto done = static_cast<uint32_t>(copy.page_count());
        REQUIRE_FALSE(cache.acknowledge({StageId(0), copy.id, done}).has_error());
      }
    }
    return keys;
  };
  REQUIRE(persisted(true).size() == 1);
  REQUIRE(persisted(true) == persisted(false));
}
