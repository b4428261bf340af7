#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/enum_names.h"
#include "base/result.h"
#include "cache/cache_counts.h"
#include "cache/page_copy.h"
#include "cache/page_pool.h"
#include "cache/radix_tree.h"

namespace millrace::cache {

/// When a page on the device gets its copy on the host; what reaches the host goes on to the store, if there is one.
enum class WritePolicy : uint8_t {
  kWriteThrough,           ///< as soon as it has been computed
  kWriteThroughSelective,  ///< once a second sequence uses it
  kWriteBack,              ///< when its device page is wanted for something else
};

inline constexpr EnumName<WritePolicy> kWritePolicyNames[] = {
    {WritePolicy::kWriteThrough, "write_through"},
    {WritePolicy::kWriteThroughSelective, "write_through_selective"},
    {WritePolicy::kWriteBack, "write_back"},
};
constexpr std::span<const EnumName<WritePolicy>> enum_names(WritePolicy) {
  return kWritePolicyNames;
}

struct PrefixCacheOptions {
  uint32_t page_size = 64;
  uint32_t page_count = 0;
  bool share_prefixes = true;    ///< false: every page belongs to one sequence
  uint32_t host_page_count = 0;  ///< 0: no host tier
  bool has_store = false;        ///< stages have a store behind their host tier
  WritePolicy write_policy = WritePolicy::kWriteThrough;
  uint64_t first_copy_id = 1;  ///< id of the first copy; where stages outlive heads, so large that no other head has it
};

/// What a sequence holds: its pages in order, of which the tree knows the first `indexed_pages`. Plain data that only
/// PrefixCache changes.
struct PageTable {
  std::vector<PageId> pages;
  NodeId node = kNoNode;  ///< the last known page, locked; kNoNode: nothing is held
  uint32_t indexed_pages = 0;
  std::vector<PageKey> keys;  ///< of the prompt's pages from `first_key` on, if prefetch() has hashed them
  uint32_t first_key = 0;
};

/// The head's account of the KV cache: which pages are free, which prefixes are known and on which tier, and the copies
/// between tiers that the stages are asked for. A page changes its tier here only when all stages have acknowledged the
/// copy. Plain and deterministic; owned by the scheduler, on its thread. docs/cache.md is the contract.
class PrefixCache {
 public:
  explicit PrefixCache(const PrefixCacheOptions& options);

  /// The longest known prefix of `tokens`; nothing when prefixes are not shared.
  [[nodiscard]] RadixTree::Match match(std::string_view salt, std::span<const TokenId> tokens) const;
  /// Changes whenever a match may have changed.
  [[nodiscard]] uint64_t version() const { return tree_.version(); }

  /// Gives `page_table`, which holds nothing, the matched pages and new ones up to `page_count`. Host pages of the
  /// match are loaded by the next plan. False, and nothing changes for the holder, when there are not enough.
  [[nodiscard]] bool acquire(PageTable& page_table, std::string_view salt, const RadixTree::Match& match,
                             size_t page_count);
  /// One more page. False when none is free or evictable now; if writing_back() some will be.
  [[nodiscard]] bool extend(PageTable& page_table);
  /// The full pages of `tokens` have been computed, or will be by plans already made: others may share them.
  void publish(PageTable& page_table, std::span<const TokenId> tokens);
  /// Gives everything back; what the tree knows stays cached.
  void release(PageTable& page_table);

  /// Pages that can be had: free, or in the tree and in nobody's use.
  [[nodiscard]] size_t available_pages() const { return pool_.free_count() + tree_.evictable_device_pages(); }
  /// available_pages() once the match is in use. O(pages of the match that nobody uses).
  [[nodiscard]] size_t available_after(const RadixTree::Match& match) const {
    return available_pages() - (match.device_pages == 0 ? 0 : tree_.evictable_above(match.device_node));
  }
  /// Pages that only `page_table` keeps from being available, but for those of the match.
  [[nodiscard]] size_t exclusively_held(const PageTable& page_table, const RadixTree::Match& match) const;
  /// Copies are under way that will make pages available.
  [[nodiscard]] bool writing_back() const { return write_back_pages_ > 0; }

  /// A request of this id waits: looks in the store for what neither tier has of its prompt, and brings it to the host.
  /// `page_table` will be the request's, and keeps the keys.
  void prefetch(SequenceId id, std::string_view salt, std::span<const TokenId> tokens, PageTable& page_table);
  [[nodiscard]] bool prefetching(SequenceId id) const { return prefetches_.contains(id); }
  /// Prefetches whose requests wait, as far as is known here. O(prefetches); for simulation.
  [[nodiscard]] size_t wanted_prefetches() const;
  /// It waits no longer. What has not been asked of the store is not; what is under way ends as if nobody cared.
  void stop_prefetch(SequenceId id);

  /// Copies for the next plan to carry, in order; what is too much for it is left for the one after.
  [[nodiscard]] std::vector<PageCopy> take_copies();
  [[nodiscard]] bool has_copies() const { return !copies_.empty() || !to_store_.empty(); }
  [[nodiscard]] bool has_pending_copies() const { return !pending_copies_.empty(); }
  /// Device pages are kept by copies to or from the host, asked for or under way. O(copies).
  [[nodiscard]] bool copies_pin_pages() const;
  /// All stages are through with a copy; acks of copies that are not under way are kData.
  [[nodiscard]] Result<void> acknowledge(const CopyAck& ack);

  /// Forgets all prefixes. False, and nothing happens, while any is in use or copied.
  [[nodiscard]] bool flush();
  /// The ring has broken. Nobody holds anything any more, and the stages forget what is on their devices. Whether all
  /// still hold their host pages is asked with the next ring's first plans; until they have answered, verifying() is
  /// true and nothing may be matched, acquired or prefetched.
  void on_ring_lost();
  [[nodiscard]] bool verifying() const { return verifying_ > 0; }

  [[nodiscard]] const PrefixCacheCounts& counts() const { return counts_; }
  [[nodiscard]] size_t page_count() const { return pool_.page_count(); }
  [[nodiscard]] size_t cached_pages() const { return tree_.device_page_count(); }
  [[nodiscard]] size_t host_page_count() const { return host_pool_.page_count(); }
  [[nodiscard]] size_t cached_host_pages() const { return tree_.host_page_count(); }
  /// CHECKs that every page is somewhere exactly once, given what all holders hold, and that nothing is counted or kept
  /// but for them and for copies under way. O(pages); for simulation.
  void check_invariants(std::span<const PageTable* const> holders) const;

 private:
  struct PendingCopy {
    PageCopy copy;
    uint32_t done = 0;          // pages good on every stage, once all have answered
    std::vector<NodeId> nodes;  // pinned on the device (load, store) or on the host (persist)
    bool frees_device = false;  // a store for the sake of the device pages
    SequenceId request;         // of a probe or fetch
  };
  struct Prefetch {
    NodeId anchor = kNoNode;      // the last known page before, locked
    std::vector<TokenId> tokens;  // [keys, page_size]
    std::vector<PageKey> keys;
    size_t found = 0;    // of the keys, from the first on: what the store has
    bool wanted = true;  // its request still waits
  };

  [[nodiscard]] bool make_room(size_t count);
  [[nodiscard]] std::optional<HostPageId> allocate_host_page();
  void release_host(std::span<const HostPageId> pages);
  void persist(const std::vector<NodeId>& nodes);
  void load(const RadixTree::Match& match, std::span<const PageId> pages);
  void on_page_inserted(NodeId node);
  [[nodiscard]] bool write_back(NodeId victim, size_t count);
  void store(const std::vector<NodeId>& nodes);
  void request_copy(PageCopy copy, std::vector<NodeId> nodes, bool frees_device = false, SequenceId request = {});
  void finish(const PendingCopy& way);
  void finish_store(const PendingCopy& way);
  void finish_persist(const PendingCopy& way);
  void finish_probe(const PendingCopy& way);
  void finish_fetch(const PendingCopy& way);
  void request_verification();
  void finish_verify(const PendingCopy& way);
  void clear_tree();
  [[nodiscard]] std::vector<PageKey> keys_of(const PageTable& page_table, uint32_t first,
                                             std::span<const TokenId> tokens, PageKey before) const;
  void skip_known(Prefetch& prefetch);
  void fetch(SequenceId id);
  void end_prefetch(SequenceId id);
  [[nodiscard]] NodeId root_of(std::string_view salt);
  void set_key(NodeId node, const PageTable& page_table, std::span<const TokenId> tokens);
  void check_device_pages(std::span<const PageTable* const> holders) const;
  void check_host_pages() const;
  void check_copies() const;

  const PrefixCacheOptions options_;
  PagePool pool_;
  HostPagePool host_pool_;
  RadixTree tree_;
  std::vector<PageKey> keys_;     // by node; with a store only
  std::vector<NodeId> to_store_;  // new pages that the next plan stores, pinned
  std::deque<PageCopy> copies_;   // not yet sent
  std::unordered_map<CopyId, PendingCopy> pending_copies_;
  std::unordered_map<SequenceId, Prefetch> prefetches_;
  std::unordered_set<PageKey> fetching_;   // that fetches are bringing
  std::vector<SequenceId> after_fetches_;  // prefetches that want a page of those, and go on when one has ended
  std::unordered_set<NodeId> storing_;     // nodes whose store is noted or under way
  std::unordered_map<HostPageId, bool> persisting_;  // true: the tree has given it up; free when the copy ends
  CopyId next_copy_;
  CopyId last_verify_{0};  // that a plan has carried
  size_t write_back_pages_ = 0;
  size_t prefetch_pages_ = 0;  // host pages that fetches fill
  size_t verifying_ = 0;       // questions what is held that wait for answers
  PrefixCacheCounts counts_;
};

}  // namespace millrace::cache
