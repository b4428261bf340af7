#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "cache/eviction_order.h"
#include "cache/group_pages.h"
#include "cache/token_trie.h"

namespace millrace::cache {

/// Hears of nodes that lose what other cache groups build on. Outlives the tree's use.
class NodeListener {
 public:
  virtual ~NodeListener() = default;
  /// A node loses its device page, which nothing keeps.
  virtual void on_off_device(NodeId node) = 0;
  /// A node leaves the tree. Its id may be used again.
  virtual void on_removed(NodeId node) = 0;
};

/// The index of known prefixes and of the tiers that hold their pages in the first cache group. Sequences share what
/// they have in common: one node per full page, never split or copied. Prompts of different salts have different roots.
///
/// Every node is on the device, on the host, or on both; a node on the device has all its ancestors there. A lock keeps
/// a node and its ancestors. What is unlocked may be evicted, least recently used first, leaves before their parents.
/// Plain and deterministic: recency is a logical clock. Owned by a PrefixCache, on its thread. Pages belong to the
/// caller's pools: insert() and set_host() take them over, the evictions and clear() hand them back.
class RadixTree final : public GroupPages {
 public:
  explicit RadixTree(uint32_t page_size);
  /// Sets who is notified of removed nodes, except by clear() and clear_device(), which only report removed nodes.
  void set_listener(NodeListener* listener) { listener_ = listener; }

  struct Match {
    NodeId device_node = kNoNode;  ///< the last of the pages on the device; the salt's root if there are none
    NodeId node = kNoNode;         ///< the last page on any tier
    uint32_t device_pages = 0;
    uint32_t pages = 0;  ///< on any tier; those after device_pages are on the host only
    /// Pages that the first group has, where other groups cannot continue; 0 if they can, or if there are none.
    uint32_t branch_pages = 0;
  };
  /// Returns the longest known prefix of `tokens` in whole pages. O(pages matched). The nodes are kNoNode for an
  /// unknown salt.
  [[nodiscard]] Match match(std::string_view salt, std::span<const TokenId> tokens) const;
  /// Returns the last page on any tier that `tokens`, which come after `node`, lead to. O(pages between).
  [[nodiscard]] NodeId follow(NodeId node, std::span<const TokenId> tokens) const;

  /// Returns the root of a salt, made if it is new; lock it before anything else is called.
  [[nodiscard]] NodeId root(std::string_view salt);
  /// Keeps `node` and its ancestors, and counts as their use. O(depth).
  void lock(NodeId node);
  void unlock(NodeId node);
  /// Keeps a node on the device, though not its ancestors, for a copy under way. Its page can't be evicted; those of
  /// its ancestors count as evictable but come only after it. O(1).
  void pin(NodeId node) override;
  void unpin(NodeId node) override;
  /// Keeps the host page of a node from evict_host(), for a copy under way. If the node goes with one above it, so does
  /// the pin.
  void pin_host(NodeId node) override;
  void unpin_host(NodeId node) override;
  /// Moves a lock from `from` to its descendant `to`. O(pages between).
  void extend_lock(NodeId from, NodeId to);

  /// Makes the page after `parent`, with these tokens [page_size] and this device page, known. If it is on the device
  /// already the tree keeps its own: then device_page() of the result is not `page`, which stays the caller's.
  [[nodiscard]] NodeId insert(NodeId parent, std::span<const TokenId> tokens, PageId page);
  /// Makes a page known that is on the host only. The caller keeps `host_page` if the node has a host page already.
  [[nodiscard]] NodeId insert_host(NodeId parent, std::span<const TokenId> tokens, HostPageId host_page);
  /// Gives a node its copy on the other tier. It has none there; set_device wants its parent on the device.
  void set_device(NodeId node, PageId page);
  void set_host(NodeId node, HostPageId page) override;

  [[nodiscard]] PageId device_page(NodeId node) const override { return at(node).device; }
  [[nodiscard]] HostPageId host_page(NodeId node) const override { return at(node).host; }
  [[nodiscard]] NodeId parent(NodeId node) const { return trie_.parent(node); }
  [[nodiscard]] std::span<const TokenId> tokens(NodeId node) const { return trie_.tokens(node); }
  /// Returns the number of pages from the root to `node`.
  [[nodiscard]] uint32_t depth(NodeId node) const { return trie_.depth(node); }
  /// Counts the pages up to `node` that one lock alone keeps and that do not lead to `other` (kNoNode: none). O(depth).
  [[nodiscard]] uint32_t exclusively_locked(NodeId node, NodeId other) const;
  /// Returns how often a lock has been taken on the node or below it.
  [[nodiscard]] uint32_t use_count(NodeId node) const { return at(node).uses; }

  /// Frees up to `count` device pages into `device`. Nodes with a host copy stay as such; others go, and with them
  /// host-only descendants, whose pages go to `host`. O(log nodes) each.
  void evict_device(size_t count, std::vector<PageId>& device, std::vector<HostPageId>& host) override;
  /// Frees up to `count` host pages.
  void evict_host(size_t count, std::vector<HostPageId>& host) override;
  /// Returns the node whose device page would be freed next; kNoNode if none can be.
  [[nodiscard]] NodeId next_device_victim() const override { return device_order_.next(); }
  /// Returns the ancestor whose turn it would be next if the device page of `node`, which has no children there, were
  /// gone; kNoNode if there is none.
  [[nodiscard]] NodeId device_victim_above(NodeId node) const override;
  /// Forgets everything, locked or not.
  void clear(std::vector<PageId>& device, std::vector<HostPageId>& host);
  /// Forgets what the device holds, and with it what can't be reached by host pages alone; no copy is under way any
  /// more. Nothing is locked.
  void clear_device(std::vector<PageId>& device, std::vector<HostPageId>& host);
  /// Returns all pages of a tier, in no particular order.
  [[nodiscard]] std::vector<PageId> device_pages() const;
  [[nodiscard]] std::vector<HostPageId> host_pages() const;

  /// Returns the number of device pages that evict_device could free.
  [[nodiscard]] size_t evictable_device_pages() const override { return evictable_device_pages_; }
  /// Counts the evictable pages that locking `node`, which is on the device or a root, would keep. O(those).
  [[nodiscard]] size_t evictable_above(NodeId node) const;
  [[nodiscard]] size_t device_page_count() const { return device_page_count_; }
  [[nodiscard]] size_t host_page_count() const { return host_page_count_; }
  /// Returns the number of nodes that hold pages.
  [[nodiscard]] size_t node_count() const { return trie_.page_count(); }
  [[nodiscard]] bool locked() const { return locks_ > 0; }
  /// Returns a number that changes whenever a match may have changed.
  [[nodiscard]] uint64_t version() const { return version_; }
  /// Returns the logical time.
  [[nodiscard]] uint64_t clock() const { return clock_; }
  /// Returns whether a page of the tree has this id.
  [[nodiscard]] bool contains(NodeId node) const {
    return node.value() < residency_.size() && (at(node).device != kNoPage || at(node).host != kNoHostPage);
  }
  struct PinCounts {
    size_t locks = 0;
    size_t pins = 0;
    size_t host_pins = 0;
  };
  /// Counts what keeps nodes. O(nodes); for tests and simulation.
  [[nodiscard]] PinCounts pin_counts() const;
  /// CHECKs every invariant. O(nodes log nodes); for tests and simulation.
  void check_invariants() const;

 private:
  /// The tiers that hold one page, and what keeps it there.
  struct Residency {
    PageId device = kNoPage;
    HostPageId host = kNoHostPage;
    uint32_t device_children = 0;
    uint32_t locks = 0;
    uint32_t pins = 0;
    uint32_t host_pins = 0;
    uint32_t uses = 0;
    uint64_t used = 0;  // by the logical clock
    [[nodiscard]] bool is_pinned() const { return locks > 0 || pins > 0; }
  };

  [[nodiscard]] Residency& at(NodeId id) { return residency_[id.value()]; }
  [[nodiscard]] const Residency& at(NodeId id) const { return residency_[id.value()]; }
  void reset(NodeId id);
  [[nodiscard]] NodeId find_or_add(NodeId parent, std::span<const TokenId> tokens);
  void remove(NodeId id);
  void remove_subtree(NodeId id, std::vector<HostPageId>& host);
  void change_locks(NodeId from, NodeId until, int change);
  void count_evictable(const Residency& node, bool was_pinned);
  void drop_device(NodeId id, std::vector<PageId>& device);
  [[nodiscard]] bool is_device_victim(NodeId id) const;
  [[nodiscard]] bool is_host_victim(NodeId id) const;
  void refresh(NodeId id);
  void drop_root_if_unused(NodeId id);

  TokenTrie trie_;
  NodeListener* listener_ = nullptr;
  std::vector<Residency> residency_;  // by node; of nodes that are gone: empty
  EvictionOrder device_order_;        // unlocked device leaves
  EvictionOrder host_order_;          // unlocked nodes whose host page can go
  size_t evictable_device_pages_ = 0;
  size_t device_page_count_ = 0;
  size_t host_page_count_ = 0;
  size_t locks_ = 0;
  uint64_t clock_ = 0;
  uint64_t version_ = 0;
};

}  // namespace millrace::cache
