#pragma once

#include <vector>

#include "cache/cache_counts.h"
#include "cache/copy_tracker.h"
#include "cache/host_tier.h"
#include "cache/node_keys.h"

namespace millrace::cache {

/// Copies of one cache group from the host tier to the page store (CopyKind::kPersist). A store that is behind by a
/// quarter of the host tier gets no more. The pages that wait for it would evict host pages in use. Plain and
/// deterministic. Owned by a GroupAccount, on its thread, as are all that it refers to.
class Persister {
 public:
  Persister(GroupPages& pages, const NodeKeys& keys, HostTier& host, CopyTracker& copies, PrefixCacheCounts& counts,
            uint32_t group = 0);

  /// Asks for copies of these nodes, which are on the host; those beyond the bound count as unpersisted.
  void request(const std::vector<NodeId>& nodes);
  /// Ends a persist copy.
  void finish(const PendingCopy& ended);

 private:
  GroupPages& pages_;
  const NodeKeys& keys_;
  HostTier& host_;
  CopyTracker& copies_;
  PrefixCacheCounts& counts_;
  const uint32_t group_;
};

}  // namespace millrace::cache
