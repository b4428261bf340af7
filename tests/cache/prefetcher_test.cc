#include "cache/prefetcher.h"

#include <catch2/catch.hpp>

#include "cache/tier_support.h"

using namespace millrace;
using namespace millrace::cache;
using millrace::test::TierParts;

TEST_CASE("a prefetch asks for what no tier has and brings what the store has") {
  TierParts parts(8);
  (void)parts.compute({1, 2});
  const std::vector<TokenId> tokens{1, 2, 3, 4, 5};
  PageTable table;
  parts.prefetcher.start(SequenceId(1), "", tokens, table);
  REQUIRE(table.first_key == 2);
  REQUIRE(table.keys.size() == 3);
  const PendingCopy probe = parts.end_copy(2);
  REQUIRE(probe.copy.keys == table.keys);
  parts.prefetcher.finish_probe(probe);
  const PendingCopy fetch = parts.end_copy(2);
  REQUIRE(fetch.copy.kind == CopyKind::kFetch);
  REQUIRE(fetch.copy.keys == std::vector{table.keys[0], table.keys[1]});
  parts.prefetcher.finish_fetch(fetch);
  REQUIRE(parts.tree.match("", tokens).pages == 4);
  REQUIRE(parts.counts.fetched_pages == 2);
  REQUIRE_FALSE(parts.prefetcher.contains(SequenceId(1)));
  REQUIRE_FALSE(parts.tree.locked());
}

TEST_CASE("a second prompt waits for the pages that a fetch brings already") {
  TierParts parts(8);
  const std::vector<TokenId> tokens{1, 2, 3};
  PageTable tables[2];
  for (const uint64_t id : {0, 1}) {
    parts.prefetcher.start(SequenceId(id), "", tokens, tables[id]);
    parts.prefetcher.check_keys();
    parts.prefetcher.finish_probe(parts.end_copy(3));
    if (id == 0) continue;
    REQUIRE(parts.prefetcher.waiting_count() == 1);
  }
  REQUIRE(parts.prefetcher.filled_pages() == 3);
}

TEST_CASE("a stopped prefetch leaves no lock, and fetches fill half of the host at most") {
  TierParts parts(4);
  const std::vector<TokenId> tokens{1, 2, 3};
  PageTable table;
  parts.prefetcher.start(SequenceId(1), "", tokens, table);
  parts.prefetcher.stop(SequenceId(1));
  parts.prefetcher.stop(SequenceId(9));
  REQUIRE(parts.prefetcher.count() == 0);
  REQUIRE_FALSE(parts.copies.has_unsent());
  REQUIRE_FALSE(parts.tree.locked());
  parts.prefetcher.start(SequenceId(2), "", tokens, table);
  parts.prefetcher.finish_probe(parts.end_copy(3));
  REQUIRE(parts.prefetcher.filled_pages() == 2);
  REQUIRE(parts.prefetcher.wanted_count() == 1);
  parts.prefetcher.clear();
  REQUIRE(parts.prefetcher.filled_pages() == 0);
  REQUIRE_FALSE(parts.tree.locked());
}
