#include "grammar/id_sorter.h"

#include <algorithm>
#include <utility>

namespace millrace::grammar {
namespace {

/// Ids of a block that is sorted at once. Longer sets are merged of such blocks.
constexpr size_t kBlockIds = 512;
/// Ids that are sorted, and merged, in the time of one step.
constexpr size_t kSortedPerStep = 2;
constexpr size_t kMergedPerStep = 16;

}  // namespace

bool IdSorter::run(WorkBudget& budget) {
  if (sorted_width_ == 0) {
    for (; at_ < ids_.size(); at_ += kBlockIds) {
      if (budget.is_exhausted()) return false;
      const size_t count = std::min(kBlockIds, ids_.size() - at_);
      std::ranges::sort(std::span(ids_).subspan(at_, count));
      budget.spend(count / kSortedPerStep);
    }
    sorted_width_ = kBlockIds;
    at_ = 0;
  }
  while (sorted_width_ < ids_.size()) {
    merged_.resize(ids_.size());
    for (; at_ < ids_.size(); at_ += 2 * sorted_width_) {
      if (budget.is_exhausted()) return false;
      const auto pair = std::span(ids_).subspan(at_, std::min(2 * sorted_width_, ids_.size() - at_));
      const size_t middle = std::min(sorted_width_, pair.size());
      std::ranges::merge(pair.first(middle), pair.subspan(middle), std::span(merged_).subspan(at_).begin());
      budget.spend(pair.size() / kMergedPerStep);
    }
    ids_.swap(merged_);
    sorted_width_ *= 2;
    at_ = 0;
  }
  ids_.erase(std::ranges::unique(ids_).begin(), ids_.end());
  return true;
}

std::vector<uint32_t> IdSorter::take() {
  std::vector<uint32_t> ids = std::exchange(ids_, {});
  clear();
  return ids;
}

void IdSorter::clear() {
  ids_.clear();
  sorted_width_ = at_ = 0;
}

}  // namespace millrace::grammar
