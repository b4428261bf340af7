#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "cache/page_key.h"
#include "cache/page_table.h"
#include "cache/radix_tree.h"

namespace millrace::cache {

/// The page keys of the tree's nodes, by which the page store names them. Each key is hashed once: those that a
/// prefetch hashed for a waiting prompt are taken from its page table. Without a store it keeps nothing. Owned by a
/// PrefixCache, on its thread; the tree is the PrefixCache's.
class NodeKeys {
 public:
  NodeKeys(RadixTree& tree, uint32_t page_size, bool has_store);

  /// Returns the root of a salt, made with its key if it is new.
  [[nodiscard]] NodeId root(std::string_view salt);
  /// Sets the key of `node`, which is the page of `page_table` that is indexed next and has these tokens.
  void set_computed(NodeId node, const PageTable& page_table, std::span<const TokenId> tokens);
  /// Sets the key of `node`.
  void set(NodeId node, const PageKey& key);
  [[nodiscard]] const PageKey& at(NodeId node) const { return keys_[node.value()]; }
  /// Returns the keys of the pages of `tokens` that follow `node`, the `first`-th of the prompt of `page_table` and on.
  [[nodiscard]] std::vector<PageKey> after(NodeId node, const PageTable& page_table, uint32_t first,
                                           std::span<const TokenId> tokens) const;
  /// CHECKs the keys of `node` and its ancestors. O(depth); for simulation.
  void check_path(NodeId node) const;

 private:
  RadixTree& tree_;
  const uint32_t page_size_;
  const bool has_store_;
  std::vector<PageKey> keys_;  // by node
};

}  // namespace millrace::cache
