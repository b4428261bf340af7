#include "cache/host_writer.h"

#include <catch2/catch.hpp>

#include "cache/tier_support.h"

using namespace millrace;
using namespace millrace::cache;
using millrace::test::TierParts;

TEST_CASE("a page is stored once, and is on the host when its copy is good") {
  TierParts parts(4);
  const auto nodes = parts.compute({1, 2, 3});
  for (const NodeId node : {nodes[0], nodes[1], nodes[0], nodes[2]}) parts.writer.note(node);
  REQUIRE(parts.writer.noted_pages() == 3);
  parts.writer.request_noted();
  parts.writer.note(nodes[0]);  // on its way
  REQUIRE(parts.writer.noted_pages() == 0);
  REQUIRE(parts.tree.pin_counts().pins == 3);
  const PendingCopy ended = parts.end_copy(2);
  REQUIRE(parts.writer.finish(ended) == std::vector{nodes[0], nodes[1]});
  REQUIRE(parts.tree.host_page(nodes[0]) == ended.copy.host[0]);
  REQUIRE(parts.tree.host_page(nodes[2]) == kNoHostPage);
  REQUIRE(parts.host.pool().free_count() == 2);  // the one that failed went back
  REQUIRE(parts.counts.stored_pages == 2);
  parts.writer.note(nodes[0]);
  parts.writer.note(nodes[2]);
  REQUIRE(parts.writer.noted_pages() == 1);
}

TEST_CASE("noted pages without room on the host are dropped and unpinned") {
  TierParts parts(1);
  const auto nodes = parts.compute({1, 2});
  for (const NodeId node : nodes) parts.writer.note(node);
  parts.writer.request_noted();
  REQUIRE(parts.writer.storing_pages() == 1);
  REQUIRE(parts.tree.pin_counts().pins == 1);
  REQUIRE(parts.copies.pending_count(CopyKind::kStore) == 1);
}

TEST_CASE("write-back saves a victim and the pages whose turn comes after it") {
  TierParts parts(2);
  const auto nodes = parts.compute({1, 2, 3, 4});
  REQUIRE(parts.tree.next_device_victim() == nodes[3]);
  REQUIRE(parts.writer.write_back(nodes[3], 3));
  REQUIRE(parts.writer.write_back_pages() == 2);  // the host has no room for a third
  const PendingCopy ended = parts.end_copy(2);
  REQUIRE(ended.nodes == std::vector{nodes[3], nodes[2]});
  REQUIRE(parts.writer.finish(ended).size() == 2);
  REQUIRE(parts.writer.write_back_pages() == 0);
  for (const NodeId node : nodes) parts.tree.lock(node);
  REQUIRE_FALSE(parts.writer.write_back(nodes[1], 1));  // nothing on the host can go
  REQUIRE(parts.tree.pin_counts().pins == 0);
}
