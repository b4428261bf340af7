#pragma once

#include <cstdint>

#include "cache/cache_counts.h"
#include "cache/copy_tracker.h"
#include "cache/group_pages.h"
#include "cache/host_tier.h"
#include "cache/host_writer.h"
#include "cache/node_keys.h"
#include "cache/page_pool.h"
#include "cache/persister.h"
#include "cache/write_policy.h"

namespace millrace::cache {

/// The account of one cache group: its free pages on both tiers, what makes room for others, and the copies that leave
/// the device and the host. Plain and deterministic. Owned by a PrefixCache, on its thread, as are all that it refers
/// to.
class GroupAccount {
 public:
  GroupAccount(uint32_t group, PoolSizes sizes, WritePolicy write_policy, GroupPages& pages, const NodeKeys& keys,
               CopyTracker& copies);
  GroupAccount(const GroupAccount&) = delete;  // its parts refer to each other
  GroupAccount& operator=(const GroupAccount&) = delete;

  /// Evicts until `count` pages are free. False: fewer are free now, though writing back may free some.
  [[nodiscard]] bool make_room(size_t count);
  /// Takes back pages that neither the tree nor a copy that fills them holds any more.
  void release(std::span<const PageId> device, std::span<const HostPageId> host);
  /// Returns the number of pages that can be allocated: those that are free, or in the tree and evictable.
  [[nodiscard]] size_t available_pages() const { return pool_.free_count() + pages_.evictable_device_pages(); }
  /// Ends a store copy, whose nodes are unpinned here; returns the nodes that are on the host by it.
  [[nodiscard]] std::vector<NodeId> finish_store(const PendingCopy& ended);

  /// Frees all device pages and ends all copies, since the ring has broken. The group's pages follow.
  void on_ring_lost();
  /// Replaces both pools by free ones. The tree holds none of their pages, and no copy is under way.
  void resize(PoolSizes sizes);

  [[nodiscard]] uint32_t group() const { return group_; }
  [[nodiscard]] GroupPages& pages() { return pages_; }
  [[nodiscard]] PagePool& pool() { return pool_; }
  [[nodiscard]] const PagePool& pool() const { return pool_; }
  [[nodiscard]] HostTier& host() { return host_; }
  [[nodiscard]] const HostTier& host() const { return host_; }
  [[nodiscard]] HostWriter& writer() { return writer_; }
  [[nodiscard]] const HostWriter& writer() const { return writer_; }
  [[nodiscard]] Persister& persister() { return persister_; }
  [[nodiscard]] PrefixCacheCounts& counts() { return counts_; }
  [[nodiscard]] const PrefixCacheCounts& counts() const { return counts_; }
  [[nodiscard]] WritePolicy write_policy() const { return write_policy_; }

 private:
  const uint32_t group_;
  const WritePolicy write_policy_;
  GroupPages& pages_;
  PrefixCacheCounts counts_;
  PagePool pool_;
  HostTier host_;
  HostWriter writer_;
  Persister persister_;
};

}  // namespace millrace::cache
