#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace millrace::cache {

/// A page's position in the tree. It stays valid until the node is removed, which a lock prevents.
using NodeId = Id<struct RadixNodeTag, uint32_t>;
inline constexpr NodeId kNoNode{UINT32_MAX};

/// The shape of the radix tree: one node per full page of tokens, below one root per salt. It knows the tokens of each
/// page and how pages follow each other, and nothing of memory, tiers or use. Plain and deterministic. Owned by a
/// RadixTree, on its thread. A NodeId is reused after remove(), so per-node state of the owner is indexed by it.
class TokenTrie {
 public:
  explicit TokenTrie(uint32_t page_size);

  /// Returns the root of a salt; kNoNode when no prompt of that salt is known.
  [[nodiscard]] NodeId find_root(std::string_view salt) const;
  /// Returns the page with these tokens [page_size] right after `parent`; kNoNode when there is none.
  [[nodiscard]] NodeId child(NodeId parent, std::span<const TokenId> tokens) const;

  /// Adds a root for a salt that has none.
  [[nodiscard]] NodeId add_root(std::string_view salt);
  /// Adds the page with these tokens [page_size] after `parent`, which has no such child.
  [[nodiscard]] NodeId add(NodeId parent, std::span<const TokenId> tokens);
  /// Removes a page without children.
  void remove(NodeId id);
  /// Removes a root without children.
  void remove_root(NodeId id);
  /// Removes every node.
  void clear();

  [[nodiscard]] NodeId parent(NodeId id) const { return at(id).parent; }
  [[nodiscard]] NodeId first_child(NodeId id) const { return at(id).first_child; }
  [[nodiscard]] NodeId next_sibling(NodeId id) const { return at(id).next_sibling; }
  /// Returns the number of pages from the root to `id`, itself included; 0 for a root.
  [[nodiscard]] uint32_t depth(NodeId id) const { return at(id).depth; }
  [[nodiscard]] bool is_root(NodeId id) const { return at(id).salt != nullptr; }
  [[nodiscard]] std::span<const TokenId> tokens(NodeId id) const {
    return std::span(tokens_).subspan(size_t{id.value()} * page_size_, page_size_);
  }
  [[nodiscard]] uint32_t page_size() const { return page_size_; }
  /// Returns all roots, in no particular order.
  [[nodiscard]] std::vector<NodeId> roots() const;
  /// Returns the number of pages; roots do not count.
  [[nodiscard]] size_t page_count() const { return nodes_.size() - free_.size() - roots_.size(); }
  /// CHECKs that links, salts and the hash index agree. O(nodes); for tests and simulation.
  void check_invariants() const;

 private:
  struct Node {
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId next_sibling = kNoNode;
    NodeId previous_sibling = kNoNode;
    uint32_t depth = 0;
    uint64_t hash = 0;                  // of the parent's id and the tokens
    const std::string* salt = nullptr;  // of a root: its key in roots_
  };

  [[nodiscard]] Node& at(NodeId id) { return nodes_[id.value()]; }
  [[nodiscard]] const Node& at(NodeId id) const { return nodes_[id.value()]; }
  [[nodiscard]] NodeId allocate();

  const uint32_t page_size_;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;  // [nodes, page_size]
  std::vector<NodeId> free_;
  std::unordered_map<std::string, NodeId> roots_;
  std::unordered_multimap<uint64_t, NodeId> by_hash_;
};

}  // namespace millrace::cache
