#include "sched/router/prefix_index.h"

#include <algorithm>

namespace millrace::sched {

void PrefixIndex::set_max_pages(size_t max_pages) {
  max_pages_ = max_pages;
  evict(size() - std::min(size(), max_pages_));
}

size_t PrefixIndex::match(std::span<const PageName> prompt) const {
  size_t pages = 0;
  while (pages < prompt.size() && known_.contains(prompt[pages])) ++pages;
  return pages;
}

void PrefixIndex::insert(std::span<const PageName> prefix) {
  const std::span<const PageName> kept = prefix.first(std::min(prefix.size(), max_pages_));
  // Backwards, so that each page counts as used after those that follow it.
  for (size_t i = kept.size(); i-- > 0;) {
    const auto [entry, is_new] = known_.try_emplace(kept[i]);
    if (is_new) {
      order_.push_front(kept[i]);
      entry->second = order_.begin();
    } else {
      order_.splice(order_.begin(), order_, entry->second);
    }
  }
  evict(size() - std::min(size(), max_pages_));
}

void PrefixIndex::evict(size_t count) {
  for (; count > 0 && !order_.empty(); --count) {
    known_.erase(order_.back());
    order_.pop_back();
  }
}

void PrefixIndex::clear() {
  known_.clear();
  order_.clear();
}

}  // namespace millrace::sched
