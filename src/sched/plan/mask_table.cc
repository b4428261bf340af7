#include "sched/plan/mask_table.h"

namespace millrace::sched {

MaskTable::MaskTable(uint32_t slot_count) : mask_count_(mask_table_size(slot_count)) {}

uint32_t MaskTable::index_of(const std::shared_ptr<const TokenMask>& mask, Plan& plan) {
  const auto known = by_mask_.find(mask.get());
  if (known != by_mask_.end()) {
    entries_.splice(entries_.begin(), entries_, known->second);
    return entries_.front().index;
  }
  auto index = static_cast<uint32_t>(entries_.size());
  if (entries_.size() == mask_count_) {
    index = entries_.back().index;
    by_mask_.erase(entries_.back().mask.get());
    entries_.pop_back();
  }
  entries_.push_front({mask, index});
  by_mask_.emplace(mask.get(), entries_.begin());
  plan.masks.push_back({index, *mask});
  return index;
}

void MaskTable::clear() {
  entries_.clear();
  by_mask_.clear();
}

}  // namespace millrace::sched
