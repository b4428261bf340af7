#include "cache/persister.h"

#include <catch2/catch.hpp>

#include "cache/tier_support.h"

using namespace millrace;
using namespace millrace::cache;
using millrace::test::TierParts;

TEST_CASE("a quarter of the host tier may wait for the store, under the keys of its pages") {
  TierParts parts(8);
  const auto nodes = parts.compute({1, 2, 3});
  for (const NodeId node : nodes) parts.tree.set_host(node, parts.host.allocate().value());
  parts.persister.request(nodes);
  REQUIRE(parts.counts.unpersisted_pages == 1);
  REQUIRE(parts.host.persisting_count() == 2);
  const PendingCopy ended = parts.end_copy(1);
  REQUIRE(ended.copy.keys.size() == 2);
  const TokenId first = 1;
  REQUIRE(ended.copy.keys[0] == child_key(root_key(""), std::span(&first, 1)));
  REQUIRE(ended.copy.keys[1] == parts.keys.at(nodes[1]));
  parts.persister.finish(ended);
  REQUIRE(parts.counts.persisted_pages == 1);
  REQUIRE(parts.host.persisting_count() == 0);
  REQUIRE(parts.tree.pin_counts().host_pins == 0);
  parts.persister.request({nodes[2]});
  REQUIRE(parts.copies.pending_count(CopyKind::kPersist) == 1);
}
