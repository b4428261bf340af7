#include "cache/node_keys.h"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::cache;

TEST_CASE("keys are chained along the tree, hashed or taken from a page table") {
  RadixTree tree(2);
  NodeKeys keys(tree, 2, true);
  const std::vector<TokenId> tokens{1, 2, 3, 4};
  const NodeId root = keys.root("salt");
  REQUIRE(keys.at(root) == root_key("salt"));
  const PageKey first = child_key(root_key("salt"), std::span(tokens).first(2));
  const PageKey second = child_key(first, std::span(tokens).last(2));
  PageTable table;
  REQUIRE(keys.after(root, table, 0, tokens) == std::vector{first, second});
  const NodeId page = tree.insert(root, std::span(tokens).first(2), PageId(0));
  keys.set_computed(page, table, std::span(tokens).first(2));
  REQUIRE(keys.at(page) == first);

  // A page table that has keys is believed, so that nothing is hashed twice.
  const PageKey marked = root_key("another key");
  table.keys = {marked};
  table.first_key = 1;
  table.indexed_pages = 1;
  REQUIRE(keys.after(page, table, 1, std::span(tokens).last(2)) == std::vector{marked});
  const NodeId next = tree.insert(page, std::span(tokens).last(2), PageId(1));
  keys.set_computed(next, table, std::span(tokens).last(2));
  REQUIRE(keys.at(next) == marked);
  keys.set(next, second);
  keys.check_path(next);
}
