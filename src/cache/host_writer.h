#pragma once

#include <unordered_set>
#include <vector>

#include "cache/cache_counts.h"
#include "cache/copy_tracker.h"
#include "cache/host_tier.h"
#include "cache/group_pages.h"

namespace millrace::cache {

/// Copies of one cache group from the device to the host tier (CopyKind::kStore): pages noted for write-through, and
/// victims of an eviction that are written back first. A page is stored once at a time and stays pinned until its copy
/// ends. Plain and deterministic. Owned by a GroupAccount, on its thread, as are all that it refers to.
class HostWriter {
 public:
  HostWriter(GroupPages& pages, HostTier& host, CopyTracker& copies, PrefixCacheCounts& counts, uint32_t group = 0);

  /// Notes a page on the device for the next plan, unless it is on the host or on its way there.
  void note(NodeId node);
  /// Asks for the copies of all noted pages; those for which the host has no room are dropped.
  void request_noted();
  /// Asks for copies of a victim and of up to `count` - 1 ancestors whose turn comes when it is gone. Their device
  /// pages can be evicted when all stages have stored them. False when the host has no room.
  [[nodiscard]] bool write_back(NodeId victim, size_t count);
  /// Ends a store copy, whose nodes are unpinned already; returns the nodes that are on the host by it.
  [[nodiscard]] std::vector<NodeId> finish(const PendingCopy& ended);
  /// Forgets everything noted and under way.
  void clear();

  [[nodiscard]] size_t noted_pages() const { return noted_.size(); }
  /// Returns the number of pages noted or being stored.
  [[nodiscard]] size_t storing_pages() const { return storing_.size(); }
  /// Returns the number of pages being stored for the sake of their device pages.
  [[nodiscard]] size_t write_back_pages() const { return write_back_pages_; }

 private:
  GroupPages& pages_;
  HostTier& host_;
  CopyTracker& copies_;
  PrefixCacheCounts& counts_;
  const uint32_t group_;
  std::vector<NodeId> noted_;           // pinned
  std::unordered_set<NodeId> storing_;  // noted, or their copy is pending
  size_t write_back_pages_ = 0;
};

}  // namespace millrace::cache
