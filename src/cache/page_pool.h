#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/ids.h"

namespace millrace::cache {

/// The number of pages of each tier, the same on every stage of a ring epoch.
struct PoolSizes {
  uint32_t device = 0;
  uint32_t host = 0;
  uint32_t sequences = 0;  ///< of the first group: for which window groups have room; 0: as many as its pages suggest
  friend bool operator==(const PoolSizes&, const PoolSizes&) = default;
};

/// The head's account of one tier's pages: which ids are free. Owned by the scheduler, on its thread. The same ids hold
/// on every stage, so nothing is allocated anywhere else. Double frees and foreign ids are programmer errors.
template <class PageIdType>
class BasicPagePool {
 public:
  explicit BasicPagePool(size_t page_count) : is_free_(page_count, true) {
    free_.reserve(page_count);
    for (size_t id = page_count; id-- > 0;) free_.emplace_back(static_cast<uint32_t>(id));
  }

  /// Appends `count` pages to `into`, or none and returns false when fewer are free. O(count).
  [[nodiscard]] bool allocate(size_t count, std::vector<PageIdType>& into) {
    if (count > free_.size()) return false;
    for (size_t i = 0; i < count; ++i) {
      is_free_[free_.back().value()] = false;
      into.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }

  void release(std::span<const PageIdType> pages) {
    for (const PageIdType page : pages) {
      CHECK(page.value() < is_free_.size(), "page {} of a pool of {}", page.value(), is_free_.size());
      CHECK(!is_free_[page.value()], "page {} freed twice", page.value());
      is_free_[page.value()] = true;
      free_.push_back(page);
    }
  }

  [[nodiscard]] size_t free_count() const { return free_.size(); }
  /// Returns the free pages, in no particular order.
  [[nodiscard]] std::span<const PageIdType> free_pages() const { return free_; }
  [[nodiscard]] size_t page_count() const { return is_free_.size(); }

 private:
  std::vector<PageIdType> free_;  // a stack: pages used last are warm and are used again first
  std::vector<bool> is_free_;
};

using PagePool = BasicPagePool<PageId>;
using HostPagePool = BasicPagePool<HostPageId>;

}  // namespace millrace::cache
