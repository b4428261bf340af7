#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "cache/page_key.h"
#include "cache/token_trie.h"

namespace millrace::cache {

/// The pages of one sequence in a window group: those that its next token sees, and those after them. In a state group
/// some indices have no page.
struct WindowTable {
  struct Entry {
    PageId page;            ///< kNoPage: none
    NodeId node = kNoNode;  ///< the node whose page it is, claimed; kNoNode: it belongs to the sequence alone
    bool loads = false;     ///< the node's page is on the host still, pinned there
  };
  uint32_t first = 0;          ///< index in the sequence of the first entry's page
  uint32_t branch_pages = 0;   ///< state group: pages after which a snapshot is wanted; 0: none are
  std::vector<Entry> entries;  ///< in order
  [[nodiscard]] uint32_t end() const { return first + static_cast<uint32_t>(entries.size()); }
};

/// The pages of one sequence in order, of which the tree knows the first `indexed_pages`. Plain data that only
/// PrefixCache and its parts change.
struct PageTable {
  std::vector<PageId> pages;         ///< of the first group
  std::vector<WindowTable> windows;  ///< of the window groups, while pages are held
  NodeId node = kNoNode;             ///< the last known page, locked; kNoNode: nothing is held
  uint32_t indexed_pages = 0;
  std::vector<PageKey> keys;  ///< keys of the prompt's pages from `first_key` on, if prefetch() has hashed them
  uint32_t first_key = 0;
};

}  // namespace millrace::cache
