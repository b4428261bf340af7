#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/ids.h"

namespace millrace::cache {

/// The head's account of one tier's pages: which ids are free. Owned by the scheduler, on its thread. The same ids hold
/// on every stage, so nothing is allocated anywhere else. Double frees and foreign ids are programmer errors.
class PagePool {
 public:
  explicit PagePool(size_t page_count);

  /// Appends `count` pages to `into`, or none and returns false when fewer are free. O(count).
  [[nodiscard]] bool allocate(size_t count, std::vector<PageId>& into);
  void release(std::span<const PageId> pages);

  [[nodiscard]] size_t free_count() const { return free_.size(); }
  [[nodiscard]] size_t page_count() const { return is_free_.size(); }

 private:
  std::vector<PageId> free_;  // a stack: pages used last are warm and are used again first
  std::vector<bool> is_free_;
};

}  // namespace millrace::cache
