#include "cache/page_pool.h"

#include "base/check.h"

namespace millrace::cache {

PagePool::PagePool(size_t page_count) : is_free_(page_count, true) {
  free_.reserve(page_count);
  for (size_t id = page_count; id-- > 0;) free_.emplace_back(static_cast<uint32_t>(id));
}

bool PagePool::allocate(size_t count, std::vector<PageId>& into) {
  if (count > free_.size()) return false;
  for (size_t i = 0; i < count; ++i) {
    is_free_[free_.back().value()] = false;
    into.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void PagePool::release(std::span<const PageId> pages) {
  for (const PageId page : pages) {
    CHECK(page.value() < is_free_.size(), "page {} of a pool of {}", page.value(), is_free_.size());
    CHECK(!is_free_[page.value()], "page {} freed twice", page.value());
    is_free_[page.value()] = true;
    free_.push_back(page);
  }
}

}  // namespace millrace::cache
