#pragma once

#include <cstdint>
#include <vector>

#include "cache/eviction_order.h"
#include "cache/group_pages.h"
#include "cache/radix_tree.h"

namespace millrace::cache {

/// The pages that the nodes of the radix tree have in one window group. A node may have a page or none, whatever those
/// above it have. A device page is there only while the node is on the device in the tree as well; every page goes with
/// its node. Sequences claim the pages that their next token sees. The others may be evicted: first those that a
/// sequence has passed and no other has reused, the shallowest first; then the least recently used.
///
/// Plain and deterministic. Owned by a WindowGroup, on its thread; the tree is the PrefixCache's and outlives it.
class WindowPages final : public GroupPages {
 public:
  explicit WindowPages(RadixTree& tree) : tree_(tree) {}

  [[nodiscard]] PageId device_page(NodeId node) const override { return at(node).device; }
  [[nodiscard]] HostPageId host_page(NodeId node) const override { return at(node).host; }
  /// Returns whether a tier has the node's page.
  [[nodiscard]] bool known(NodeId node) const { return device_page(node) != kNoPage || host_page(node) != kNoHostPage; }
  /// Gives a node, which has no device page here but one in the tree, its page.
  void set_device(NodeId node, PageId page);
  void set_host(NodeId node, HostPageId page) override;

  /// Keeps the device page of a node for a sequence that sees it.
  void claim(NodeId node);
  /// Ends a claim. `passed`: the sequence has gone on beyond the page.
  void unclaim(NodeId node, bool passed);
  /// Notes that several sequences have the node's tokens: its page is not evicted early when one has passed it.
  void mark_shared(NodeId node) { entry(node).shared = true; }
  void pin(NodeId node) override;
  void unpin(NodeId node) override;
  void pin_host(NodeId node) override;
  void unpin_host(NodeId node) override;

  void evict_device(size_t count, std::vector<PageId>& device, std::vector<HostPageId>& host) override;
  void evict_host(size_t count, std::vector<HostPageId>& host) override;
  [[nodiscard]] NodeId next_device_victim() const override { return device_order_.next(); }
  [[nodiscard]] NodeId device_victim_above(NodeId /*node*/) const override { return kNoNode; }
  [[nodiscard]] size_t evictable_device_pages() const override { return device_order_.size(); }

  /// Forgets the device page of a node and returns it; kNoPage if it has none.
  [[nodiscard]] PageId take_device(NodeId node);
  /// Forgets the host page of a node and returns it; kNoHostPage if it has none.
  [[nodiscard]] HostPageId take_host(NodeId node);
  /// Forgets what is known of a node without pages, which leaves the tree.
  void forget(NodeId node);
  /// Forgets all device pages, claims and pins: no sequence and no copy is left.
  void clear_device();
  /// Forgets everything, and appends the pages.
  void clear(std::vector<PageId>& device, std::vector<HostPageId>& host);

  /// Returns all pages of a tier, in no particular order. O(nodes).
  [[nodiscard]] std::vector<PageId> device_pages() const;
  [[nodiscard]] std::vector<HostPageId> host_pages() const;
  [[nodiscard]] size_t device_page_count() const { return device_page_count_; }
  [[nodiscard]] size_t host_page_count() const { return host_page_count_; }
  /// Returns a number that changes whenever a match may have changed.
  [[nodiscard]] uint64_t version() const { return version_; }
  struct Counts {
    size_t claims = 0;
    size_t pins = 0;
    size_t host_pins = 0;
  };
  /// Counts what keeps pages. O(nodes); for tests and simulation.
  [[nodiscard]] Counts counts() const;
  /// CHECKs every invariant. O(nodes); for tests and simulation.
  void check_invariants() const;

 private:
  struct Entry {
    PageId device = kNoPage;
    HostPageId host = kNoHostPage;
    uint32_t claims = 0;
    uint32_t pins = 0;
    uint32_t host_pins = 0;
    bool shared = false;
    uint64_t used = 0;  // by the tree's clock
    [[nodiscard]] bool is_evictable() const { return device != kNoPage && claims == 0 && pins == 0; }
    [[nodiscard]] bool is_host_evictable() const { return host != kNoHostPage && host_pins == 0 && pins == 0; }
  };
  [[nodiscard]] const Entry& at(NodeId node) const;
  [[nodiscard]] Entry& entry(NodeId node);
  void refresh(NodeId node);

  RadixTree& tree_;
  std::vector<Entry> entries_;  // by node; of nodes without pages: empty
  EvictionOrder device_order_;
  EvictionOrder host_order_;
  size_t device_page_count_ = 0;
  size_t host_page_count_ = 0;
  uint64_t version_ = 0;
};

}  // namespace millrace::cache
