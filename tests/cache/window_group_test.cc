#include "cache/window_group.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include "base/hash.h"
#include "base/random.h"
#include "cache/pool_division.h"
#include "cache/prefix_cache.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::cache;

namespace {

constexpr uint32_t kPageSize = 4;

std::vector<TokenId> prompt(int32_t number, size_t tokens) {
  std::vector<TokenId> made(tokens);
  std::iota(made.begin(), made.end(), number * 1000);
  return made;
}

/// The only stage of a ring: every copy succeeds at once.
void run_copies(PrefixCache& cache) {
  while (cache.has_copies()) {
    for (const PageCopy& copy : cache.take_copies()) {
      REQUIRE_FALSE(cache.acknowledge({copy.id, static_cast<uint32_t>(copy.page_count())}).has_error());
    }
  }
}

size_t pages_of(size_t tokens) {
  return (tokens + kPageSize - 1) / kPageSize;
}

/// Runs a prompt in chunks as the scheduler does; returns how many of its tokens were known.
size_t use(PrefixCache& cache, const std::vector<TokenId>& tokens, size_t chunk) {
  PageTable table;
  const RadixTree::Match match = cache.match("", std::span(tokens).first(tokens.size() - 1));
  const size_t known = size_t{match.pages} * kPageSize;
  REQUIRE(cache.acquire(table, "", match, pages_of(tokens.size()), pages_of(std::min(known + chunk, tokens.size()))));
  for (size_t done = known; done < tokens.size();) {
    const size_t before = std::exchange(done, std::min(done + chunk, tokens.size()));
    REQUIRE(cache.extend_windows(table, pages_of(done), before));
    cache.publish(table, std::span(tokens).first(done));
    cache.advance_windows(table, done);
    const PageTable* holders[] = {&table};
    cache.check_invariants(holders);
    run_copies(cache);
  }
  cache.release(table);
  cache.check_invariants({});
  return known;
}

PrefixCacheOptions options_with(uint32_t window, PoolSizes sizes) {
  return {.page_size = kPageSize, .page_count = 400, .windows = {{.window = window, .pages = sizes}}};
}

}  // namespace

TEST_CASE("a token sees the pages of its window") {
  REQUIRE(first_window_page(0, 8, 4) == 0);
  REQUIRE(first_window_page(7, 8, 4) == 0);   // sees 0 to 7
  REQUIRE(first_window_page(10, 8, 4) == 0);  // sees 3 to 10
  REQUIRE(first_window_page(11, 8, 4) == 1);  // sees 4 to 11
  REQUIRE(first_window_page(16, 1, 4) == 4);  // sees itself only
  REQUIRE(kept_window_pages(8, 4) == 3);
  REQUIRE(kept_window_pages(1, 4) == 1);
}

TEST_CASE("a sequence of twenty windows needs the pages of one") {
  // Three pages that a step keeps and two of each chunk, of the fifty that the sequence has.
  PrefixCache cache(options_with(10, {.device = 6}));
  REQUIRE(use(cache, prompt(1, 200), 8) == 0);
  PrefixCacheOptions unshared = options_with(10, {.device = 6});
  unshared.share_prefixes = false;
  PrefixCache plain(unshared);
  REQUIRE(use(plain, prompt(1, 200), 8) == 0);
}

TEST_CASE("a match needs the pages of the last window only") {
  PrefixCache cache(options_with(10, {.device = 6}));
  const std::vector<TokenId> tokens = prompt(1, 200);
  (void)use(cache, tokens, 8);
  std::vector<TokenId> longer = tokens;
  longer.resize(220, 7);
  REQUIRE(use(cache, longer, 8) == 200);
  // In the middle the window's pages have gone.
  std::vector<TokenId> other(tokens.begin(), tokens.begin() + 100);
  other.resize(120, 9);
  REQUIRE(cache.match("", other).pages == 0);
  REQUIRE(use(cache, other, 8) == 0);
}

TEST_CASE("a prefix that several prompts share keeps its window") {
  PrefixCache cache(options_with(10, {.device = 12}));
  const std::vector<TokenId> common = prompt(1, 40);
  const auto with_end = [&](TokenId end) {
    std::vector<TokenId> tokens = common;
    tokens.resize(100, end);
    return tokens;
  };
  (void)use(cache, with_end(5001), 8);
  (void)use(cache, with_end(5002), 8);
  for (TokenId end = 5003; end < 5010; ++end) REQUIRE(use(cache, with_end(end), 8) == 40);
}

TEST_CASE("window pages go with their nodes on both tiers") {
  PrefixCacheOptions options = options_with(10, {.device = 40, .host = 40});
  options.page_count = 30;
  options.host_page_count = 30;
  PrefixCache cache(options);
  run_copies(cache);  // the verification at the start
  for (int32_t number = 0; number < 20; ++number) {
    REQUIRE(use(cache, prompt(number, 60), 20) == 0);
    REQUIRE(use(cache, prompt(number, 64), 20) == 60);
  }
  REQUIRE(cache.flush());
  REQUIRE(cache.windows()[0]->pages().device_page_count() == 0);
  REQUIRE(cache.windows()[0]->pages().host_page_count() == 0);
  cache.check_invariants({});
}

TEST_CASE("a prefix continues from window pages on the host") {
  PrefixCacheOptions options = options_with(10, {.device = 8, .host = 100});
  options.page_count = 30;
  options.host_page_count = 200;
  PrefixCache cache(options);
  run_copies(cache);
  (void)use(cache, prompt(1, 60), 8);
  (void)use(cache, prompt(2, 110), 8);  // evicts the first from the device
  std::vector<TokenId> other = prompt(1, 32);
  other.resize(40, 9);
  REQUIRE(use(cache, other, 8) == 32);
  REQUIRE(cache.windows()[0]->account().counts().host_hit_pages == 3);
}

namespace {

/// The only stage of a ring, with a page store: every copy succeeds at once as far as the store has its pages.
struct StageWithStore {
  std::map<uint32_t, std::set<PageKey>> keys;  // by cache group

  void run_copies(PrefixCache& cache) {
    while (cache.has_copies()) {
      for (const PageCopy& copy : cache.take_copies()) {
        std::set<PageKey>& stored = keys[copy.group];
        auto done = static_cast<uint32_t>(copy.page_count());
        if (copy.kind == CopyKind::kPersist) stored.insert(copy.keys.begin(), copy.keys.end());
        if (copy.kind == CopyKind::kProbe || copy.kind == CopyKind::kFetch) {
          const auto missing =
              std::ranges::find_if(copy.keys, [&](const PageKey& key) { return !stored.contains(key); });
          done = static_cast<uint32_t>(missing - copy.keys.begin());
        }
        REQUIRE_FALSE(cache.acknowledge({copy.id, done}).has_error());
        cache.check_invariants({});
      }
    }
  }
};

}  // namespace

TEST_CASE("a prefix comes from the store with what its window sees") {
  PrefixCacheOptions options = options_with(10, {.device = 8, .host = 100});
  options.host_page_count = 200;
  options.has_store = true;
  PrefixCache cache(options);
  StageWithStore stage;
  stage.run_copies(cache);
  const std::vector<TokenId> tokens = prompt(1, 60);
  PageTable table;
  REQUIRE(cache.acquire(table, "", cache.match("", tokens), 15, 8));
  for (size_t done = 4; done <= 60; done += 4) {
    REQUIRE(cache.extend_windows(table, pages_of(done), done - 4));
    cache.publish(table, std::span(tokens).first(done));
    cache.advance_windows(table, done);
    for (const PageCopy& copy : cache.take_copies()) {
      REQUIRE_FALSE(cache.acknowledge({copy.id, static_cast<uint32_t>(copy.page_count())}).has_error());
      if (copy.kind == CopyKind::kPersist) stage.keys[copy.group].insert(copy.keys.begin(), copy.keys.end());
    }
  }
  cache.release(table);
  stage.run_copies(cache);
  REQUIRE(stage.keys[0].size() == 15);
  REQUIRE(stage.keys[1].size() == 15);
  REQUIRE(cache.flush());
  const auto asked = std::span(tokens).first(59);
  cache.prefetch(SequenceId(1), "", asked, table);
  stage.run_copies(cache);
  REQUIRE_FALSE(cache.prefetching(SequenceId(1)));
  REQUIRE(cache.match("", asked).pages == 14);
  REQUIRE(cache.windows()[0]->account().counts().fetched_pages == 3);
  REQUIRE(cache.flush());
  cache.prefetch(SequenceId(2), "", asked.first(40), table);
  stage.run_copies(cache);
  REQUIRE(cache.match("", asked).pages == 10);
  // A part of a window is of no use.
  PageKey key = root_key("");
  for (size_t page = 0; page < 9; ++page) key = child_key(key, std::span(tokens).subspan(page * kPageSize, kPageSize));
  stage.keys[1].erase(key);
  REQUIRE(cache.flush());
  cache.prefetch(SequenceId(3), "", asked.first(40), table);
  stage.run_copies(cache);
  REQUIRE(cache.match("", asked).pages == 0);
  cache.check_invariants({});
}

namespace {

/// Sequences that run on a cache with one window group, and the content of every page of that group: a hash of all
/// tokens up to the last one that was written. What a sequence reads must be its own prefix.
class World {
 public:
  World(uint64_t seed, GroupKind kind) : seed_(seed), kind_(kind), cache_(options()) {}

  void step() {
    const uint32_t choice = draw(10);
    if (choice < 3 && sequences_.size() < 4) begin();
    if (choice == 3 && !sequences_.empty()) end(draw(static_cast<uint32_t>(sequences_.size())));
    if (choice == 4) acknowledge_some();
    if (choice == 5 && draw(8) == 0) break_ring();
    run_plan();
    check();
  }
  void finish() {
    while (!sequences_.empty()) end(0);
    run_plan();
    while (!unanswered_.empty()) acknowledge_some();
    check();
    REQUIRE(cache_.windows()[0]->account().available_pages() == cache_.windows()[0]->account().pool().page_count());
  }
  size_t reused_tokens = 0;
  size_t loaded_pages = 0;

 private:
  struct Running {
    std::vector<TokenId> tokens;
    size_t done = 0;
    PageTable table;
  };

  PrefixCacheOptions options() {
    const bool has_states = kind_ == GroupKind::kState;
    window_ = has_states ? state_window(kPageSize) : 1 + draw(14);
    const bool has_host = draw(3) > 0;
    const uint32_t kept = 4 * kept_window_pages(window_, kPageSize) + (has_states ? 0 : 12);
    return {.page_size = kPageSize,
            .page_count = 60 + draw(40),
            .host_page_count = has_host ? 60 + draw(100) : 0,
            .write_policy = static_cast<WritePolicy>(draw(3)),
            .windows = {{.window = window_,
                         .pages = {.device = kept + draw(20), .host = has_host ? 5 + draw(60) : 0},
                         .kind = kind_}},
            .snapshot_pages = draw(4)};
  }
  uint32_t draw(uint32_t count) { return static_cast<uint32_t>(uniform_at(seed_, draws_++) * count); }

  void begin() {
    if (cache_.verifying()) return;
    Running made;
    made.tokens.resize(1 + draw(70));
    // Prompts that share what comes before the first token of their own.
    const uint32_t own = draw(80);
    for (size_t i = 0; i < made.tokens.size(); ++i) {
      made.tokens[i] = static_cast<TokenId>(i < own ? i : 100 + draw(2));
    }
    const auto match = cache_.match("", std::span(made.tokens).first(made.tokens.size() - 1));
    made.done = size_t{match.pages} * kPageSize;
    if (!cache_.acquire(made.table, "", match, pages_of(made.tokens.size()), pages_of(made.done + 1))) return;
    reused_tokens += made.done;
    sequences_.push_back(std::move(made));
  }
  void end(size_t index) {
    cache_.release(sequences_[index].table);
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void break_ring() {
    while (!sequences_.empty()) end(0);
    cache_.on_ring_lost();
    unanswered_.clear();
    content_.clear();
  }
  static size_t hash_of(std::span<const TokenId> tokens) { return hash_bytes(std::as_bytes(tokens)); }

  /// A slice reads what the window sees and writes its own tokens.
  struct Slice {
    std::vector<std::pair<PageId, size_t>> reads;
    std::vector<std::pair<PageId, size_t>> writes;
  };
  void run_plan() {
    std::vector<Slice> slices;
    for (Running& one : sequences_) {
      const size_t end = std::min(one.done + 1 + draw(12), one.tokens.size());
      if (end == one.done || !cache_.extend_windows(one.table, pages_of(end), one.done)) continue;
      slices.push_back(kind_ == GroupKind::kState ? state_slice_of(one, end) : slice_of(one, end));
      one.done = end;
      cache_.publish(one.table, std::span(one.tokens).first(end), end == one.tokens.size());
    }
    const std::vector<PageCopy> copies = cache_.take_copies();
    for (Running& one : sequences_) cache_.advance_windows(one.table, one.done);
    cache_.end_plan();
    for (const PageCopy& copy : copies) {
      if (copy.group == 1 && copy.kind == CopyKind::kLoad) load(copy);
    }
    for (const Slice& slice : slices) {
      for (const auto& [page, wanted] : slice.reads) REQUIRE(content_.at(page) == wanted);
      for (const auto& [page, written] : slice.writes) content_[page] = written;
    }
    for (const PageCopy& copy : copies) {
      for (size_t i = 0; copy.group == 1 && copy.kind == CopyKind::kStore && i < copy.host.size(); ++i) {
        host_content_[copy.host[i]] = content_.at(copy.device[i]);
      }
    }
    for (const PageCopy& copy : copies) unanswered_.push_back({copy.id, static_cast<uint32_t>(copy.page_count())});
  }
  void load(const PageCopy& copy) {
    loaded_pages += copy.host.size();
    for (size_t i = 0; i < copy.host.size(); ++i) content_[copy.device[i]] = host_content_.at(copy.host[i]);
  }
  Slice slice_of(const Running& one, size_t end) const {
    Slice slice;
    const WindowTable& table = one.table.windows[0];
    const std::span<const TokenId> tokens(one.tokens);
    const auto page_at = [&](size_t index) { return table.entries.at(index - table.first).page; };
    const size_t first = (one.done + 1 - std::min<size_t>(one.done + 1, window_)) / kPageSize;
    for (size_t index = first; index * kPageSize < one.done; ++index) {
      const size_t until = std::min((index + 1) * kPageSize, one.done);
      slice.reads.emplace_back(page_at(index), hash_of(tokens.first(until)));
    }
    for (size_t index = one.done / kPageSize; index * kPageSize < end; ++index) {
      slice.writes.emplace_back(page_at(index), hash_of(tokens.first(std::min((index + 1) * kPageSize, end))));
    }
    return slice;
  }
  /// A slice reads the states before it, and writes those at the ends of its pages.
  static Slice state_slice_of(const Running& one, size_t end) {
    Slice slice;
    const WindowTable& table = one.table.windows[0];
    const std::span<const TokenId> tokens(one.tokens);
    const auto page_at = [&](size_t index) { return table.entries.at(index - table.first).page; };
    if (one.done > 0) slice.reads.emplace_back(page_at((one.done - 1) / kPageSize), hash_of(tokens.first(one.done)));
    for (size_t index = one.done / kPageSize; index * kPageSize < end; ++index) {
      const size_t until = std::min((index + 1) * kPageSize, end);
      if (page_at(index) != kNoPage) slice.writes.emplace_back(page_at(index), hash_of(tokens.first(until)));
    }
    REQUIRE(slice.writes.back().second == hash_of(tokens.first(end)));
    return slice;
  }
  void acknowledge_some() {
    std::vector<CopyAck> left;
    for (const CopyAck& ack : unanswered_) {
      if (draw(2) == 0) {
        REQUIRE_FALSE(cache_.acknowledge(ack).has_error());
      } else {
        left.push_back(ack);
      }
    }
    unanswered_ = left;
  }
  void check() {
    std::vector<const PageTable*> holders;
    for (const Running& one : sequences_) holders.push_back(&one.table);
    cache_.check_invariants(holders);
  }

  const uint64_t seed_;
  const GroupKind kind_;
  uint64_t draws_ = 0;
  uint32_t window_ = 1;
  PrefixCache cache_;
  std::vector<Running> sequences_;
  std::vector<CopyAck> unanswered_;
  std::map<PageId, size_t> content_;
  std::map<HostPageId, size_t> host_content_;
};

}  // namespace

TEST_CASE("sequences read their own prefix in window groups") {
  for (const GroupKind kind : {GroupKind::kWindow, GroupKind::kState}) {
    size_t reused = 0;
    size_t loaded = 0;
    const uint64_t seeds = test::repetitions(400);
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      INFO("seed " << seed);
      World world(seed, kind);
      for (int i = 0; i < 120; ++i) world.step();
      world.finish();
      reused += world.reused_tokens;
      loaded += world.loaded_pages;
    }
    REQUIRE(reused > 50 * seeds);
    REQUIRE(loaded > seeds / 4);
  }
}
