#pragma once

#include <memory>
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
#include "cache/window_group.h"

namespace millrace::cache {

/// Copies pages from the page store to the host tier for prompts that wait in the queue. A probe asks how many of a
/// prompt's missing pages the store has. A fetch then copies them. Pages that several prompts share are fetched once;
/// those that want them wait for that fetch. Of window groups the pages that the end of the fetched prefix sees are
/// fetched with it. Where there is a state group, a second probe asks for the deepest snapshot that the store has, and
/// the prefix ends there. All fetches together fill at most half of each group's host tier. Plain and deterministic.
/// Owned by a PrefixCache, on its thread, as are all that it refers to.
class Prefetcher {
 public:
  Prefetcher(RadixTree& tree, NodeKeys& keys, HostTier& host, CopyTracker& copies, PrefixCacheCounts& counts,
             uint32_t page_size, std::span<const std::unique_ptr<WindowGroup>> windows = {});

  /// Starts a prefetch of what no tier has of the prompt of a waiting request. `page_table` is to be the request's, and
  /// keeps the keys.
  void start(SequenceId id, std::string_view salt, std::span<const TokenId> tokens, PageTable& page_table);
  /// Stops caring for a request. What no plan has carried is not asked for; what is under way ends unnoticed.
  void stop(SequenceId id);
  /// Ends a probe: fetches what the store has, or asks for its snapshots first.
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
  [[nodiscard]] size_t filled_pages() const { return filled_.front(); }
  [[nodiscard]] size_t fetched_keys() const { return fetching_.size(); }
  /// Returns the host pages of a group that have come, but wait for another fetch of their prefetch. O(count); for
  /// simulation.
  [[nodiscard]] std::vector<HostPageId> arrived_pages(uint32_t group) const;
  /// CHECKs that each prefetch asks for its own pages. O(count); for simulation.
  void check_keys() const;

 private:
  struct Prefetch {
    NodeId anchor = kNoNode;      // the last known page before, locked
    std::vector<TokenId> tokens;  // [keys, page_size]
    std::vector<PageKey> keys;
    size_t found = 0;                           // leading keys that the store has
    uint32_t probed_depth = 0;                  // pages before the first snapshot that is probed
    uint32_t snapshot_depth = UINT32_MAX;       // pages before the deepest snapshot in the store, once it is known
    bool wanted = true;                         // its request still waits
    size_t pending = 0;                         // fetches under way
    std::vector<PendingCopy> arrived;           // fetches that have ended, while others are under way
    std::vector<std::vector<uint32_t>> depths;  // [window groups]: of the pages that are fetched, the deepest first
  };

  [[nodiscard]] HostTier& host_of(uint32_t group);
  [[nodiscard]] const WindowGroup* state_group() const;
  [[nodiscard]] bool probe_snapshots(SequenceId id);
  void end_at_snapshot(Prefetch& prefetch, uint32_t depth);
  void skip_known(Prefetch& prefetch);
  [[nodiscard]] PendingCopy prefix_fetch(const Prefetch& prefetch);
  [[nodiscard]] PendingCopy window_fetch(Prefetch& prefetch, size_t index, size_t page_count);
  [[nodiscard]] NodeId insert_prefix(const Prefetch& prefetch, const PendingCopy& ended);
  void insert_window(const Prefetch& prefetch, const PendingCopy& ended, NodeId last);
  void fetch(SequenceId id);
  void end(SequenceId id);

  RadixTree& tree_;
  NodeKeys& keys_;
  HostTier& host_;
  CopyTracker& copies_;
  PrefixCacheCounts& counts_;
  const uint32_t page_size_;
  const std::span<const std::unique_ptr<WindowGroup>> windows_;
  std::unordered_map<SequenceId, Prefetch> prefetches_;
  std::unordered_set<PageKey> fetching_;   // that fetches are bringing
  std::vector<SequenceId> after_fetches_;  // prefetches that want one of those, and go on when a fetch has ended
  std::vector<size_t> filled_;             // host pages that fetches fill, by group
};

}  // namespace millrace::cache
