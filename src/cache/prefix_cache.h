#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cache/cache_counts.h"
#include "cache/copy_tracker.h"
#include "cache/host_tier.h"
#include "cache/host_writer.h"
#include "cache/node_keys.h"
#include "cache/page_copy.h"
#include "cache/page_pool.h"
#include "cache/page_table.h"
#include "cache/persister.h"
#include "cache/prefetcher.h"
#include "cache/radix_tree.h"
#include "cache/window_group.h"
#include "cache/window_pool.h"
#include "cache/write_policy.h"

namespace millrace::cache {

struct PrefixCacheOptions {
  uint32_t page_size = 64;
  uint32_t page_count = 0;       ///< of the first group
  bool share_prefixes = true;    ///< false: every page belongs to one sequence
  uint32_t host_page_count = 0;  ///< of the first group; 0: no host tier
  bool has_store = false;        ///< stages have a store after their host tier
  WritePolicy write_policy = WritePolicy::kWriteThrough;
  std::vector<WindowPool> windows;  ///< of the window groups, which are numbered from 1 on; a state group comes last
  uint32_t snapshot_pages = 0;      ///< state groups: pages between two further snapshots; 0: none
  uint64_t first_copy_id = 1;  ///< id of the first copy; where stages outlive heads, so large that no other head has it
};

/// The head's account of the KV cache: free pages, known prefixes with their tiers, and the copies between tiers that
/// the stages are asked for. It decides what sequences get and what makes room for them; its parts keep the tree, the
/// host tier and each kind of copy. A page changes its tier only when all stages have acknowledged the copy. Plain and
/// deterministic; owned by the scheduler, on its thread, for the head's life. docs/cache.md is the contract.
class PrefixCache final : private NodeListener {
 public:
  explicit PrefixCache(const PrefixCacheOptions& options);
  PrefixCache(const PrefixCache&) = delete;  // its parts refer to each other
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Returns the longest known prefix of `tokens` at whose end every cache group can continue; nothing when prefixes
  /// are not shared.
  [[nodiscard]] RadixTree::Match match(std::string_view salt, std::span<const TokenId> tokens) const;
  /// Returns a number that changes whenever a match may have changed.
  [[nodiscard]] uint64_t version() const;

  /// Gives `page_table`, which holds nothing, the matched pages and new ones up to `page_count`; in window groups those
  /// that the match's end sees and new ones up to `window_pages`. Host pages of the match are loaded by the next plan.
  /// False, and nothing changes for the holder, when there are not enough.
  [[nodiscard]] bool acquire(PageTable& page_table, std::string_view salt, const RadixTree::Match& match,
                             size_t page_count, size_t window_pages = 0);
  /// Adds one page. False when none is free or evictable now; if writing_back() some will be.
  [[nodiscard]] bool extend(PageTable& page_table);
  /// Adds pages of window groups up to `page_count` to those of a sequence of `tokens` tokens. False when some are not
  /// free or evictable now; then no state group has added any, so that a shorter chunk may follow.
  [[nodiscard]] bool extend_windows(PageTable& page_table, size_t page_count, size_t tokens);
  /// Adds such pages for drafts, which state groups need none for.
  [[nodiscard]] bool extend_for_drafts(PageTable& page_table, size_t page_count, size_t tokens);
  /// Gives up the pages of window groups that the token after `tokens` tokens does not see. Call it when the plan that
  /// reads them is complete.
  void advance_windows(PageTable& page_table, size_t tokens);
  /// Lets others share the full pages of `tokens`, which have been computed, or will be by plans already made, or by
  /// the one that is being made. `ends_prompt`: state groups share their last snapshot.
  void publish(PageTable& page_table, std::span<const TokenId> tokens, bool ends_prompt = false);
  /// Returns whether only plans after the one that is being made may read the end of the match, which it computes.
  [[nodiscard]] bool is_fresh(const RadixTree::Match& match) const;
  /// Ends the plan that is being made.
  void end_plan();
  /// Gives everything back; what the tree knows stays cached, with the last snapshot of state groups.
  void release(PageTable& page_table);

  /// Returns the number of pages that can be allocated: those that are free, or in the tree and evictable.
  [[nodiscard]] size_t available_pages() const { return first_.available_pages(); }
  /// Returns available_pages() once the match is in use. O(pages of the match that nobody uses).
  [[nodiscard]] size_t available_after(const RadixTree::Match& match) const {
    return available_pages() - (match.device_pages == 0 ? 0 : tree_.evictable_above(match.device_node));
  }
  /// Counts the pages that only `page_table` keeps from being available, except those of the match.
  [[nodiscard]] size_t exclusively_held(const PageTable& page_table, const RadixTree::Match& match) const;
  /// Returns whether copies are under way that will make pages available.
  [[nodiscard]] bool writing_back() const;

  /// Looks in the store for what neither tier has of a waiting request's prompt, and brings it to the host.
  /// `page_table` will be the request's, and keeps the keys.
  void prefetch(SequenceId id, std::string_view salt, std::span<const TokenId> tokens, PageTable& page_table);
  [[nodiscard]] bool prefetching(SequenceId id) const { return prefetcher_.contains(id); }
  /// Returns the number of prefetches whose requests still wait. O(prefetches); for simulation.
  [[nodiscard]] size_t wanted_prefetches() const { return prefetcher_.wanted_count(); }
  /// Stops the prefetch of a request that waits no longer. What has not been asked of the store is not; what is under
  /// way ends unnoticed.
  void stop_prefetch(SequenceId id) { prefetcher_.stop(id); }

  /// Returns the copies that the next plan carries, in order. What exceeds its bound waits for the plan after it.
  [[nodiscard]] std::vector<PageCopy> take_copies();
  [[nodiscard]] bool has_copies() const { return copies_.has_unsent() || noted_pages() > 0; }
  [[nodiscard]] bool has_pending_copies() const { return !copies_.pending().empty(); }
  /// Returns whether copies to or from the host, asked for or under way, pin device pages.
  [[nodiscard]] bool copies_pin_pages() const;
  /// Ends a copy that all stages are through with; acks of copies that are not under way are kData.
  [[nodiscard]] Result<void> acknowledge(const CopyAck& ack);

  /// Forgets all prefixes. False, and nothing happens, while any is in use or copied.
  [[nodiscard]] bool flush();
  /// Forgets all holders and all device pages, since the ring has broken. Whether all stages still hold their host
  /// pages is asked with the next ring's first plans. Until they have answered, verifying() is true, and nothing may be
  /// matched, acquired or prefetched.
  void on_ring_lost();
  /// Forgets all prefixes and sets the sizes of the pools, since the stages have new ones. No ring is there.
  void resize(PoolSizes pages, std::span<const WindowPool> windows = {});
  [[nodiscard]] bool verifying() const { return copies_.pending_count(CopyKind::kVerify) > 0; }

  [[nodiscard]] const PrefixCacheCounts& counts() const { return first_.counts(); }
  [[nodiscard]] size_t page_count() const { return first_.pool().page_count(); }
  [[nodiscard]] size_t cached_pages() const { return tree_.device_page_count(); }
  [[nodiscard]] size_t host_page_count() const { return first_.host().page_count(); }
  [[nodiscard]] size_t cached_host_pages() const { return tree_.host_page_count(); }
  /// Returns the window groups, the one with number 1 first.
  [[nodiscard]] std::span<const std::unique_ptr<WindowGroup>> windows() const { return windows_; }
  /// CHECKs the whole account against what all holders hold (PrefixCacheAudit). O(pages); for simulation.
  void check_invariants(std::span<const PageTable* const> holders) const;

 private:
  void check_options() const;
  [[nodiscard]] RadixTree::Match restricted(RadixTree::Match match) const;
  [[nodiscard]] bool acquire_windows(PageTable& page_table, const RadixTree::Match& match, size_t page_count);
  [[nodiscard]] GroupAccount& account(uint32_t group) { return group == 0 ? first_ : windows_[group - 1]->account(); }
  void publish_latest(PageTable& page_table, bool is_fresh);
  void note_reused(const PageTable& page_table, const RadixTree::Match& match);
  [[nodiscard]] size_t noted_pages() const;
  void on_off_device(NodeId node) override;
  void on_removed(NodeId node) override;
  void load(const RadixTree::Match& match, std::span<const PageId> pages);
  void request_verification();
  void request_verification(uint32_t group, std::span<const HostPageId> pages);
  void finish(const PendingCopy& ended);
  void clear_tree();

  PrefixCacheOptions options_;  // resize() sets the sizes of the pools
  RadixTree tree_;
  NodeKeys keys_;
  CopyTracker copies_;
  GroupAccount first_;  // of the first group, whose pages are the tree's
  const std::vector<std::unique_ptr<WindowGroup>> windows_;
  Prefetcher prefetcher_;
};

}  // namespace millrace::cache
