#include "cache/host_tier.h"

#include <catch2/catch.hpp>

#include "cache/tier_support.h"

using namespace millrace;
using namespace millrace::cache;
using millrace::test::TierParts;

TEST_CASE("room on the host comes from free pages, then from the least recently used one") {
  TierParts parts(2);
  const auto nodes = parts.compute({1, 2});
  for (const NodeId node : nodes) parts.tree.set_host(node, parts.host.allocate().value());
  const HostPageId deepest = parts.tree.host_page(nodes[1]);
  REQUIRE(parts.host.allocate() == deepest);
  REQUIRE(parts.tree.host_page(nodes[1]) == kNoHostPage);
  REQUIRE(parts.counts.evicted_host_pages == 1);
  parts.tree.lock(nodes[0]);
  REQUIRE_FALSE(parts.host.allocate().has_value());
  parts.tree.unlock(nodes[0]);
  REQUIRE(parts.host.allocate().has_value());
}

TEST_CASE("a page that is persisted when the tree gives it up is free when the persist ends") {
  TierParts parts(1);
  const NodeId node = parts.compute({1})[0];
  const HostPageId page = parts.host.allocate().value();
  parts.tree.set_host(node, page);
  parts.host.begin_persist(node);
  REQUIRE_FALSE(parts.host.allocate().has_value());  // pinned
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  parts.tree.clear(device, host);
  parts.host.release(host);
  REQUIRE(parts.host.persisted_only() == std::vector{page});
  REQUIRE_FALSE(parts.host.allocate().has_value());
  parts.host.end_persist(page, node);
  REQUIRE(parts.host.persisting_count() == 0);
  REQUIRE(parts.host.allocate() == page);
}

TEST_CASE("abandoned persists free only what nothing else holds") {
  TierParts parts(2);
  const auto nodes = parts.compute({1, 2});
  for (const NodeId node : nodes) {
    parts.tree.set_host(node, parts.host.allocate().value());
    parts.host.begin_persist(node);
  }
  std::vector<HostPageId> given_up{parts.tree.host_page(nodes[1])};
  parts.host.release(given_up);
  parts.host.abandon_persists();
  REQUIRE(parts.host.pool().free_count() == 1);
  REQUIRE(parts.host.persisting_count() == 0);
}
