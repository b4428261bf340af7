#include "cache/token_trie.h"

#include <catch2/catch.hpp>
#include <map>

#include "base/random.h"

using namespace millrace;
using namespace millrace::cache;

namespace {

std::vector<TokenId> page_of(TokenId first, TokenId second) {
  return {first, second};
}

}  // namespace

TEST_CASE("a page is found below its parent and its salt only") {
  TokenTrie trie(2);
  const NodeId a = trie.add_root("a");
  const NodeId b = trie.add_root("b");
  const NodeId first = trie.add(a, page_of(1, 2));
  const NodeId second = trie.add(first, page_of(1, 2));
  const NodeId sibling = trie.add(first, page_of(1, 3));
  REQUIRE(trie.find_root("a") == a);
  REQUIRE(trie.find_root("c") == kNoNode);
  REQUIRE(trie.child(a, page_of(1, 2)) == first);
  REQUIRE(trie.child(b, page_of(1, 2)) == kNoNode);
  REQUIRE(trie.child(first, page_of(1, 2)) == second);
  REQUIRE(trie.child(first, page_of(1, 3)) == sibling);
  REQUIRE(trie.child(first, page_of(3, 1)) == kNoNode);
  REQUIRE(trie.depth(sibling) == 2);
  REQUIRE(trie.parent(sibling) == first);
  REQUIRE(trie.tokens(sibling)[1] == 3);
  REQUIRE(trie.is_root(b));
  REQUIRE_FALSE(trie.is_root(first));
  REQUIRE(trie.page_count() == 3);
  trie.check_invariants();
}

TEST_CASE("removed nodes are forgotten and their ids used again") {
  TokenTrie trie(2);
  const NodeId root = trie.add_root("");
  const NodeId first = trie.add(root, page_of(1, 1));
  const NodeId second = trie.add(root, page_of(2, 2));
  const NodeId third = trie.add(root, page_of(3, 3));
  trie.remove(second);
  REQUIRE(trie.child(root, page_of(2, 2)) == kNoNode);
  REQUIRE(trie.child(root, page_of(1, 1)) == first);
  REQUIRE(trie.child(root, page_of(3, 3)) == third);
  trie.check_invariants();
  REQUIRE(trie.add(first, page_of(2, 2)) == second);
  REQUIRE(trie.depth(second) == 2);
  trie.remove(second);
  trie.remove(first);
  trie.remove(third);
  trie.remove_root(root);
  REQUIRE(trie.find_root("") == kNoNode);
  REQUIRE(trie.page_count() == 0);
  trie.check_invariants();
}

TEST_CASE("a random trie agrees with a map of paths") {
  TokenTrie trie(1);
  const NodeId root = trie.add_root("");
  std::map<std::vector<TokenId>, NodeId> model{{{}, root}};
  for (uint64_t step = 0; step < 3000; ++step) {
    auto at = model.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(uniform_at(1, step) * static_cast<double>(model.size())));
    std::vector<TokenId> path = at->first;
    if (path.size() < 6 && uniform_at(2, step) < 0.6) {
      path.push_back(static_cast<TokenId>(uniform_at(3, step) * 4));
      const NodeId known = trie.child(at->second, std::span(path).last(1));
      const auto found = model.find(path);
      REQUIRE(known == (found == model.end() ? kNoNode : found->second));
      if (known == kNoNode) model.emplace(path, trie.add(at->second, std::span(path).last(1)));
    } else if (!path.empty() && trie.first_child(at->second) == kNoNode) {
      trie.remove(at->second);
      model.erase(at);
    }
    REQUIRE(trie.page_count() == model.size() - 1);
  }
  trie.check_invariants();
}
