#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/cache_counts.h"
#include "cache/page_pool.h"
#include "cache/group_pages.h"

namespace millrace::cache {

/// The room that a cache group has on the host tier: which of its pages are free, and which the page store still reads.
/// A page that the tree gives up while it is being persisted becomes free only when the persist has ended. Plain and
/// deterministic. Owned by a GroupAccount, on its thread, as are the counts.
class HostTier {
 public:
  HostTier(uint32_t page_count, GroupPages& pages, PrefixCacheCounts& counts);

  /// Returns a page to fill. Evicts the group's next host page when none is free; nothing when none can
  /// go.
  [[nodiscard]] std::optional<HostPageId> allocate();
  /// Takes back pages that neither the tree nor a copy that fills them holds any more.
  void release(std::span<const HostPageId> pages);

  /// Keeps the host page of `node` as it is until end_persist().
  void begin_persist(NodeId node);
  /// Ends the persist of `page`, which was `node`'s.
  void end_persist(HostPageId page, NodeId node);
  /// Replaces all pages by `page_count` free ones. The tree holds none, and none is being persisted.
  void resize(uint32_t page_count);
  /// Ends all persists at once, when the stages have forgotten them. The tree has no pins any more, or loses them next.
  void abandon_persists();

  /// Returns the number of pages that are being persisted.
  [[nodiscard]] size_t persisting_count() const { return persisting_.size(); }
  /// Returns the pages that only a persist keeps from being free.
  [[nodiscard]] std::vector<HostPageId> persisted_only() const;
  [[nodiscard]] const HostPagePool& pool() const { return pool_; }
  [[nodiscard]] size_t page_count() const { return pool_.page_count(); }

 private:
  HostPagePool pool_;
  GroupPages& pages_;
  PrefixCacheCounts& counts_;
  std::unordered_map<HostPageId, bool> persisting_;  // true: the tree has given the page up
};

}  // namespace millrace::cache
