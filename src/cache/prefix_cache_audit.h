#pragma once

#include <memory>
#include <span>

#include "cache/copy_tracker.h"
#include "cache/group_account.h"
#include "cache/node_keys.h"
#include "cache/page_table.h"
#include "cache/prefetcher.h"
#include "cache/radix_tree.h"
#include "cache/window_group.h"

namespace millrace::cache {

/// The check of a PrefixCache between any two of its calls. Every page of every cache group is in one state, and
/// nothing is counted or kept without an owner or a copy under way. It reads the parts and changes nothing. For tests
/// and simulation; lives on the scheduler's thread for one check.
class PrefixCacheAudit {
 public:
  struct Parts {
    const RadixTree& tree;
    const NodeKeys& keys;
    const CopyTracker& copies;
    const GroupAccount& first;
    std::span<const std::unique_ptr<WindowGroup>> windows;
    const Prefetcher& prefetcher;
  };

  explicit PrefixCacheAudit(const Parts& parts) : parts_(parts) {}
  /// CHECKs everything, given the page tables of all sequences. O(pages).
  void check(std::span<const PageTable* const> holders) const;

 private:
  /// What keeps the pages of one group, as its pages count it.
  struct Kept {
    size_t pins = 0;
    size_t host_pins = 0;
  };
  void check_device_pages(std::span<const PageTable* const> holders) const;
  void check_window(size_t index, std::span<const PageTable* const> holders) const;
  void check_host_pages(const GroupAccount& account, std::span<const HostPageId> known) const;
  void check_group_copies(const GroupAccount& account, const Kept& kept) const;
  void check_copies() const;

  const Parts parts_;
};

}  // namespace millrace::cache
