#pragma once

#include <span>

#include "cache/copy_tracker.h"
#include "cache/host_tier.h"
#include "cache/host_writer.h"
#include "cache/node_keys.h"
#include "cache/page_pool.h"
#include "cache/page_table.h"
#include "cache/prefetcher.h"
#include "cache/radix_tree.h"

namespace millrace::cache {

/// The check of a PrefixCache between any two of its calls. Every page is in one state, and nothing is counted or kept
/// without an owner or a copy under way. It reads the parts and changes nothing. For tests and simulation; lives on the
/// scheduler's thread for one check.
class PrefixCacheAudit {
 public:
  struct Parts {
    const PagePool& pool;
    const RadixTree& tree;
    const NodeKeys& keys;
    const HostTier& host;
    const CopyTracker& copies;
    const HostWriter& writer;
    const Prefetcher& prefetcher;
  };

  explicit PrefixCacheAudit(const Parts& parts) : parts_(parts) {}
  /// CHECKs everything, given the page tables of all sequences. O(pages).
  void check(std::span<const PageTable* const> holders) const;

 private:
  void check_device_pages(std::span<const PageTable* const> holders) const;
  void check_host_pages() const;
  void check_copies() const;

  const Parts parts_;
};

}  // namespace millrace::cache
