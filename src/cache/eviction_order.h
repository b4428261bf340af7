#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "cache/token_trie.h"

namespace millrace::cache {

/// The order in which one tier evicts pages: least recently used first. Of pages last used at the same time the deepest
/// goes first, since it is of no use without those above it. Whoever owns it decides which nodes are members. Plain and
/// deterministic: time is a logical clock. Owned by a RadixTree, on its thread. Memory grows with the largest NodeId.
class EvictionOrder {
 public:
  /// Makes `id` a member with these properties, or moves it there if it is one. O(log members) when anything changes.
  void insert(NodeId id, uint64_t used, uint32_t depth);
  /// Makes `id` no member; nothing happens if it is none.
  void erase(NodeId id);
  void clear();

  [[nodiscard]] bool empty() const { return members_.empty(); }
  [[nodiscard]] size_t size() const { return members_.size(); }
  /// Returns the member that is evicted next; kNoNode when there is none.
  [[nodiscard]] NodeId next() const { return members_.empty() ? kNoNode : members_.begin()->id; }

 private:
  struct Key {
    uint64_t rank = 0;  // one more than the time of the last use; 0: no member
    uint32_t depth = 0;
    NodeId id;
    friend bool operator<(const Key& a, const Key& b) {
      return std::tie(a.rank, b.depth, a.id) < std::tie(b.rank, a.depth, b.id);
    }
  };

  std::set<Key> members_;
  std::vector<Key> keys_;  // by node
};

}  // namespace millrace::cache
