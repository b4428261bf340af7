#pragma once

#include <cstddef>
#include <vector>

#include "base/ids.h"
#include "cache/token_trie.h"

namespace millrace::cache {

using millrace::kNoPage;
inline constexpr HostPageId kNoHostPage{UINT32_MAX};

/// The pages that the nodes of the radix tree have in one cache group, on the device and on the host, as those see them
/// who make room and copy. Pages belong to the pools of a GroupAccount: evictions hand them back. Lives on the
/// scheduler's thread.
class GroupPages {
 public:
  virtual ~GroupPages() = default;

  [[nodiscard]] virtual PageId device_page(NodeId node) const = 0;
  [[nodiscard]] virtual HostPageId host_page(NodeId node) const = 0;
  /// Gives a node, which has no host page, its copy there.
  virtual void set_host(NodeId node, HostPageId page) = 0;
  /// Keeps the device page of a node for a copy under way. O(1).
  virtual void pin(NodeId node) = 0;
  virtual void unpin(NodeId node) = 0;
  /// Keeps the host page of a node from evict_host(), for a copy under way. If the node goes with one above it, so does
  /// the pin.
  virtual void pin_host(NodeId node) = 0;
  virtual void unpin_host(NodeId node) = 0;

  /// Frees up to `count` device pages into `device`, and host pages that are of no use without them into `host`.
  virtual void evict_device(size_t count, std::vector<PageId>& device, std::vector<HostPageId>& host) = 0;
  /// Frees up to `count` host pages.
  virtual void evict_host(size_t count, std::vector<HostPageId>& host) = 0;
  /// Returns the node whose device page would be freed next; kNoNode if none can be.
  [[nodiscard]] virtual NodeId next_device_victim() const = 0;
  /// Returns the node whose turn it would be next if the device page of `node` were gone; kNoNode if none is known.
  [[nodiscard]] virtual NodeId device_victim_above(NodeId node) const = 0;
  /// Returns the number of device pages that evict_device could free.
  [[nodiscard]] virtual size_t evictable_device_pages() const = 0;
};

}  // namespace millrace::cache
