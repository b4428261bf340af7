#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/group_kind.h"
#include "cache/group_account.h"
#include "cache/page_table.h"
#include "cache/window_pages.h"

namespace millrace::cache {

/// Returns the index of the first page that the token after `tokens` tokens sees through a window: itself and the
/// `window` - 1 tokens before it.
[[nodiscard]] constexpr uint32_t first_window_page(size_t tokens, uint32_t window, uint32_t page_size) {
  return static_cast<uint32_t>((tokens + 1 - std::min<size_t>(tokens + 1, window)) / page_size);
}

/// One window group of a PrefixCache: the layers that see the last `window` tokens only. A sequence keeps the pages
/// that its next token sees. Those before them stay with the tree until they are evicted, so that others may continue
/// at earlier page boundaries. Plain and deterministic. Owned by a PrefixCache, on its thread, as are all that it
/// refers to.
///
/// A state group is a window group whose tables have holes. A page holds the states after the last token computed so
/// far within it, so that a full page is a snapshot at its end. A sequence has the page of its newest token, the one
/// before it where there is room, and those of wanted snapshots. The tree knows wanted snapshots, the last ones of each
/// prompt, and those of each sequence that has ended.
class WindowGroup {
 public:
  struct Options {
    uint32_t group = 1;  ///< its number; 0 is the first group's
    uint32_t window = 0;
    uint32_t page_size = 0;
    PoolSizes sizes;
    WritePolicy write_policy = WritePolicy::kWriteThrough;
    GroupKind kind = GroupKind::kWindow;
    bool takes_snapshots = true;  ///< state group: sequences share snapshots
    uint32_t snapshot_pages = 0;  ///< state group: pages between two further snapshots; 0: none
  };
  WindowGroup(const Options& options, RadixTree& tree, const NodeKeys& keys, CopyTracker& copies);

  /// Returns first_window_page() of a sequence of `tokens` tokens.
  [[nodiscard]] uint32_t first_page(size_t tokens) const {
    return first_window_page(tokens, options_.window, options_.page_size);
  }

  /// Gives an empty table the pages that a sequence sees after `node`, its `matched`-th page, and new ones up to
  /// `page_count`. Those that are on the host only get pages that load() fills; until then they are pinned there.
  /// `branch_pages`: where a state group takes a snapshot, since others have these pages too; 0: nowhere. False, and
  /// nothing is taken, when there are not enough.
  [[nodiscard]] bool acquire(WindowTable& table, NodeId node, uint32_t matched, uint32_t page_count,
                             uint32_t branch_pages = 0);
  /// Counts what acquire() found, and asks for the loads of what is on the host.
  void load(WindowTable& table);
  /// Adds pages up to `page_count` to those of a sequence of `tokens` tokens. False, and nothing is taken, when there
  /// are not enough now. A state group gives up what these tokens' states do not continue from.
  [[nodiscard]] bool extend(WindowTable& table, uint32_t page_count, size_t tokens);
  /// Lets others share the page at `index`, which is that of `node`. `shared`: another sequence has computed the same
  /// tokens. A state group shares wanted snapshots only.
  void publish(WindowTable& table, uint32_t index, NodeId node, bool shared);
  /// State group: lets others share the snapshots among the last two pages. The last full page, with index
  /// `page_count` - 1, is that of `node`. `is_fresh`: the plan that is being made fills them.
  void publish_latest(WindowTable& table, NodeId node, uint32_t page_count, bool is_fresh);
  /// State group: returns whether a plan that is being made fills the snapshot of `node`. Only later plans may read it.
  [[nodiscard]] bool is_fresh(NodeId node) const { return std::ranges::find(fresh_, node) != fresh_.end(); }
  /// Ends the plan that is being made.
  void end_plan() { fresh_.clear(); }
  /// Gives up the pages that the token after `tokens` tokens does not see. Plans made before may still use them.
  void advance(WindowTable& table, size_t tokens);
  /// Gives everything back; what the tree knows stays cached.
  void release(WindowTable& table);

  /// Frees what a node has, as it leaves the device in the tree, or the tree.
  void on_off_device(NodeId node);
  void on_removed(NodeId node);
  void clear();
  void on_ring_lost();

  [[nodiscard]] uint32_t window() const { return options_.window; }
  [[nodiscard]] GroupKind kind() const { return options_.kind; }
  [[nodiscard]] bool has_states() const { return options_.kind == GroupKind::kState; }
  [[nodiscard]] WindowPages& pages() { return pages_; }
  [[nodiscard]] const WindowPages& pages() const { return pages_; }
  [[nodiscard]] GroupAccount& account() { return account_; }
  [[nodiscard]] const GroupAccount& account() const { return account_; }

 private:
  void keep_no_more(const WindowTable::Entry& entry);
  [[nodiscard]] bool wants_snapshot(const WindowTable& table, uint32_t index) const;
  [[nodiscard]] bool add_pages(WindowTable& table, uint32_t page_count);
  void add_snapshots(WindowTable& table, uint32_t begin);
  void give_up_before(WindowTable& table, uint32_t first);
  void share(WindowTable::Entry& entry, NodeId node, bool is_fresh);

  const Options options_;
  RadixTree& tree_;
  CopyTracker& copies_;
  WindowPages pages_;
  GroupAccount account_;
  std::vector<NodeId> fresh_;  // nodes whose snapshots the plan that is being made fills
};

}  // namespace millrace::cache
