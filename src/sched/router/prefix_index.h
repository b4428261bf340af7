#pragma once

#include <cstddef>
#include <list>
#include <span>
#include <unordered_map>

#include "sched/router/page_hasher.h"

namespace millrace::sched {

/// The router's approximation of the prefixes that one ring has cached. The ring's own account belongs to its head's
/// thread, and a request for it would delay every submission. The index forgets the least recently used pages when it
/// is full and when the ring evicts. Pages after their prefix go first. Plain and deterministic; owned by a
/// RoutingPolicy.
class PrefixIndex {
 public:
  /// Sets how many pages are kept at most; 0 before the first call.
  void set_max_pages(size_t max_pages);
  /// Returns the number of leading pages of `prompt` that are known. O(that number).
  [[nodiscard]] size_t match(std::span<const PageName> prompt) const;
  /// Makes the pages of a prefix known, as used just now. Of more than max_pages the first are kept.
  void insert(std::span<const PageName> prefix);
  /// Forgets up to `count` pages, the least recently used first.
  void evict(size_t count);
  void clear();
  [[nodiscard]] size_t size() const { return known_.size(); }

 private:
  using Order = std::list<PageName>;

  size_t max_pages_ = 0;
  Order order_;  // the most recently used page first
  std::unordered_map<PageName, Order::iterator> known_;
};

}  // namespace millrace::sched
