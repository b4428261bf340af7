#include "cache/host_tier.h"

#include <utility>

namespace millrace::cache {

HostTier::HostTier(uint32_t page_count, GroupPages& pages, PrefixCacheCounts& counts)
    : pool_(page_count), pages_(pages), counts_(counts) {}

std::optional<HostPageId> HostTier::allocate() {
  std::vector<HostPageId> pages;
  while (!pool_.allocate(1, pages)) {
    pages_.evict_host(1, pages);
    if (pages.empty()) return std::nullopt;
    ++counts_.evicted_host_pages;
    release(std::exchange(pages, {}));
  }
  return pages.front();
}

void HostTier::release(std::span<const HostPageId> pages) {
  for (const HostPageId& page : pages) {
    const auto found = persisting_.find(page);
    if (found == persisting_.end()) {
      pool_.release({&page, 1});
    } else {
      found->second = true;
    }
  }
}

void HostTier::begin_persist(NodeId node) {
  const bool is_new = persisting_.emplace(pages_.host_page(node), false).second;
  CHECK(is_new, "host page {} is persisted twice", pages_.host_page(node).value());
  pages_.pin_host(node);
}

void HostTier::end_persist(HostPageId page, NodeId node) {
  const auto found = persisting_.find(page);
  CHECK(found != persisting_.end(), "host page {} is not being persisted", page.value());
  const bool given_up = found->second;
  persisting_.erase(found);
  if (given_up) {
    pool_.release({&page, 1});
  } else {
    pages_.unpin_host(node);
  }
}

void HostTier::abandon_persists() {
  pool_.release(persisted_only());
  persisting_.clear();
}

void HostTier::resize(uint32_t page_count) {
  CHECK(persisting_.empty() && pool_.free_count() == pool_.page_count(), "{} of {} host pages are free, {} persisted",
        pool_.free_count(), pool_.page_count(), persisting_.size());
  pool_ = HostPagePool(page_count);
}

std::vector<HostPageId> HostTier::persisted_only() const {
  std::vector<HostPageId> pages;
  for (const auto& [page, given_up] : persisting_) {
    if (given_up) pages.push_back(page);
  }
  return pages;
}

}  // namespace millrace::cache
