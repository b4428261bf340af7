#include <catch2/catch.hpp>
#include <numeric>

#include "cache/prefix_cache.h"

/// What is copied for the sake of room on the device, and how far the store may be behind.
using namespace millrace;
using namespace millrace::cache;

namespace {

/// A prompt of pages of one token each: `first`, and after it as many as wanted that begin with `then`.
std::vector<TokenId> unit_prompt(TokenId first, TokenId then, size_t pages) {
  std::vector<TokenId> tokens(pages, first);
  std::iota(tokens.begin() + 1, tokens.end(), then);
  return tokens;
}

/// A ring of one stage, which copies when it is told to.
struct OneStage {
  OneStage(uint32_t page_count, uint32_t host_page_count, bool has_store, WritePolicy policy)
      : cache({.page_size = 1,
               .page_count = page_count,
               .host_page_count = host_page_count,
               .has_store = has_store,
               .write_policy = policy}) {
    (void)answer({CopyKind::kVerify});
  }

  /// All copies that were asked for and are of these kinds succeed; those of other kinds wait. Pages copied.
  size_t answer(std::initializer_list<CopyKind> kinds) {
    size_t pages = 0;
    for (PageCopy& copy : cache.take_copies()) waiting.push_back(std::move(copy));
    for (const PageCopy& copy : std::exchange(waiting, {})) {
      if (std::ranges::find(kinds, copy.kind) == kinds.end()) {
        waiting.push_back(copy);
        continue;
      }
      pages += copy.page_count();
      const auto done = static_cast<uint32_t>(copy.page_count());
      REQUIRE_FALSE(cache.acknowledge({copy.id, done}).has_error());
    }
    return pages;
  }
  [[nodiscard]] bool acquire(PageTable& page_table, const std::vector<TokenId>& tokens, std::string_view salt = "") {
    return cache.acquire(page_table, salt, cache.match(salt, tokens), tokens.size());
  }
  /// Computes a prompt, for which there is room, and keeps it.
  PageTable hold(const std::vector<TokenId>& tokens, std::string_view salt = "") {
    PageTable page_table;
    REQUIRE(acquire(page_table, tokens, salt));
    cache.publish(page_table, tokens);
    return page_table;
  }
  void use(const std::vector<TokenId>& tokens, std::string_view salt = "") {
    PageTable page_table = hold(tokens, salt);
    cache.release(page_table);
  }
  [[nodiscard]] uint32_t on_device(const std::vector<TokenId>& tokens) const {
    return cache.match("", tokens).device_pages;
  }

  PrefixCache cache;
  std::vector<PageCopy> waiting;
};

}  // namespace

TEST_CASE("write-back saves cold pages but no parent of warm ones") {
  OneStage ring(4, 8, false, WritePolicy::kWriteBack);
  const auto cold = unit_prompt(1, 100, 2);
  const auto warm = unit_prompt(1, 200, 2);  // with the first page in common
  const auto warmest = unit_prompt(2, 0, 1);
  for (const auto& tokens : {cold, warm, warmest}) ring.use(tokens);
  PageTable page_table;
  const auto wanted = unit_prompt(3, 300, 2);
  REQUIRE_FALSE(ring.acquire(page_table, wanted));
  REQUIRE(ring.answer({CopyKind::kStore}) == 2);
  REQUIRE(ring.acquire(page_table, wanted));  // what was saved is what goes
  REQUIRE(ring.on_device(cold) == 1);
  REQUIRE(ring.on_device(warm) == 1);
  REQUIRE(ring.on_device(warmest) == 1);
  for (const auto& tokens : {cold, warm}) REQUIRE(ring.cache.match("", tokens).pages == 2);
  ring.cache.release(page_table);
}

TEST_CASE("write-back saves no page that a sequence uses") {
  OneStage ring(4, 8, false, WritePolicy::kWriteBack);
  const auto cold = unit_prompt(1, 100, 2);
  ring.use(cold);
  ring.use(unit_prompt(2, 0, 1));
  PageTable user = ring.hold({1});
  PageTable page_table;
  const auto wanted = unit_prompt(3, 300, 3);
  REQUIRE_FALSE(ring.acquire(page_table, wanted));
  REQUIRE(ring.answer({CopyKind::kStore}) == 2);
  REQUIRE(ring.acquire(page_table, wanted));
  REQUIRE(ring.on_device(cold) == 1);
  ring.cache.release(user);
  ring.cache.release(page_table);
}

TEST_CASE("write-back can evict all pages of all salts for one prompt") {
  OneStage ring(4, 8, false, WritePolicy::kWriteBack);
  ring.use(unit_prompt(1, 100, 2), "a");
  ring.use(unit_prompt(2, 200, 2), "b");
  PageTable page_table;
  const auto wanted = unit_prompt(3, 300, 4);
  REQUIRE_FALSE(ring.acquire(page_table, wanted));
  REQUIRE(ring.answer({CopyKind::kStore}) == 4);
  REQUIRE(ring.acquire(page_table, wanted));
  REQUIRE(ring.cache.cached_host_pages() == 4);
  ring.cache.release(page_table);
}

TEST_CASE("persists wait in a quarter of the host tier and catch up") {
  OneStage ring(16, 40, true, WritePolicy::kWriteThrough);
  for (TokenId first = 0; first < 14; ++first) {
    ring.use(unit_prompt(first, 0, 1));
    REQUIRE(ring.answer({CopyKind::kStore}) == 1);
  }
  REQUIRE(ring.cache.counts().unpersisted_pages == 4);
  REQUIRE(ring.answer({CopyKind::kPersist}) == 10);
  ring.use(unit_prompt(100, 0, 1));
  REQUIRE(ring.answer({CopyKind::kStore}) == 1);
  REQUIRE(ring.answer({CopyKind::kPersist}) == 1);
  REQUIRE(ring.cache.counts().persisted_pages == 11);
  REQUIRE(ring.cache.counts().unpersisted_pages == 4);
  // A large copy, too, persists only as many pages as may wait.
  ring.use(unit_prompt(200, 1000, 12));
  REQUIRE(ring.answer({CopyKind::kStore}) == 12);
  REQUIRE(ring.answer({CopyKind::kPersist}) == 10);
  REQUIRE(ring.cache.counts().unpersisted_pages == 6);
}
