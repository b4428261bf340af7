#pragma once

#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cache/cache_counts.h"
#include "cache/copy_tracker.h"
#include "cache/host_tier.h"
#include "cache/node_keys.h"
#include "cache/page_table.h"

namespace millrace::cache {

/// Copies pages from the page store to the host tier for prompts that wait in the queue. A probe asks how many of a
/// prompt's missing pages the store has. A fetch then copies them. Pages that several prompts share are fetched once;
/// those that want them wait for that fetch. All fetches together fill at most half of the host tier. Plain and
/// deterministic. Owned by a PrefixCache, on its thread, as are all that it refers to.
class Prefetcher {
 public:
  Prefetcher(RadixTree& tree, NodeKeys& keys, HostTier& host, CopyTracker& copies, PrefixCacheCounts& counts,
             uint32_t page_size);

  /// Starts a prefetch of what no tier has of the prompt of a waiting request. `page_table` is to be the request's, and
  /// keeps the keys.
  void start(SequenceId id, std::string_view salt, std::span<const TokenId> tokens, PageTable& page_table);
  /// Stops caring for a request. What no plan has carried is not asked for; what is under way ends unnoticed.
  void stop(SequenceId id);
  /// Ends a probe: fetches what the store has.
  void finish_probe(const PendingCopy& ended);
  /// Ends a fetch: what came is known on the host, and those who waited for it go on.
  void finish_fetch(const PendingCopy& ended);
  /// Forgets all prefetches. The host pages of pending fetches stay with the caller.
  void clear();

  [[nodiscard]] bool contains(SequenceId id) const { return prefetches_.contains(id); }
  [[nodiscard]] size_t count() const { return prefetches_.size(); }
  /// Returns the number of prefetches whose requests still wait. O(count).
  [[nodiscard]] size_t wanted_count() const;
  /// Returns the number of prefetches that wait for another's fetch.
  [[nodiscard]] size_t waiting_count() const { return after_fetches_.size(); }
  /// Returns the number of host pages that fetches fill, by each of two accounts that must agree.
  [[nodiscard]] size_t filled_pages() const { return filled_pages_; }
  [[nodiscard]] size_t fetched_keys() const { return fetching_.size(); }
  /// CHECKs that each prefetch asks for its own pages. O(count); for simulation.
  void check_keys() const;

 private:
  struct Prefetch {
    NodeId anchor = kNoNode;      // the last known page before, locked
    std::vector<TokenId> tokens;  // [keys, page_size]
    std::vector<PageKey> keys;
    size_t found = 0;    // leading keys that the store has
    bool wanted = true;  // its request still waits
  };

  void skip_known(Prefetch& prefetch);
  void fetch(SequenceId id);
  void end(SequenceId id);

  RadixTree& tree_;
  NodeKeys& keys_;
  HostTier& host_;
  CopyTracker& copies_;
  PrefixCacheCounts& counts_;
  const uint32_t page_size_;
  std::unordered_map<SequenceId, Prefetch> prefetches_;
  std::unordered_set<PageKey> fetching_;   // that fetches are bringing
  std::vector<SequenceId> after_fetches_;  // prefetches that want one of those, and go on when a fetch has ended
  size_t filled_pages_ = 0;
};

}  // namespace millrace::cache
