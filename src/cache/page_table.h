#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "cache/page_key.h"
#include "cache/token_trie.h"

namespace millrace::cache {

/// The pages of one sequence in order, of which the tree knows the first `indexed_pages`. Plain data that only
/// PrefixCache and its parts change.
struct PageTable {
  std::vector<PageId> pages;
  NodeId node = kNoNode;  ///< the last known page, locked; kNoNode: nothing is held
  uint32_t indexed_pages = 0;
  std::vector<PageKey> keys;  ///< keys of the prompt's pages from `first_key` on, if prefetch() has hashed them
  uint32_t first_key = 0;
};

}  // namespace millrace::cache
