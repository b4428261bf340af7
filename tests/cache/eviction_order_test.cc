#include "cache/eviction_order.h"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::cache;

TEST_CASE("the least recently used node goes first, of one use the deepest") {
  EvictionOrder order;
  REQUIRE(order.next() == kNoNode);
  order.insert(NodeId(1), 5, 1);
  order.insert(NodeId(2), 3, 1);
  order.insert(NodeId(3), 3, 2);
  order.insert(NodeId(4), 0, 9);
  for (const uint32_t wanted : {4, 3, 2, 1}) {
    REQUIRE(order.next() == NodeId(wanted));
    order.erase(order.next());
  }
  REQUIRE(order.empty());
}

TEST_CASE("a node is a member once, at its last use") {
  EvictionOrder order;
  order.insert(NodeId(7), 1, 1);
  order.insert(NodeId(8), 2, 1);
  order.insert(NodeId(7), 1, 1);
  REQUIRE(order.size() == 2);
  order.insert(NodeId(7), 3, 1);
  REQUIRE(order.size() == 2);
  REQUIRE(order.next() == NodeId(8));
  order.erase(NodeId(9));
  order.erase(NodeId(8));
  order.erase(NodeId(8));
  REQUIRE(order.next() == NodeId(7));
  order.clear();
  REQUIRE(order.empty());
  order.insert(NodeId(7), 0, 4);
  REQUIRE(order.next() == NodeId(7));
}
