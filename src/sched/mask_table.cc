#include "sched/mask_table.h"

namespace millrace::sched {

MaskTable::MaskTable(uint32_t slot_count) : place_count_(mask_places(slot_count)) {}

uint32_t MaskTable::place_of(const std::shared_ptr<const TokenMask>& mask, Plan& plan) {
  const auto known = by_mask_.find(mask.get());
  if (known != by_mask_.end()) {
    entries_.splice(entries_.begin(), entries_, known->second);
    return entries_.front().place;
  }
  auto place = static_cast<uint32_t>(entries_.size());
  if (entries_.size() == place_count_) {
    place = entries_.back().place;
    by_mask_.erase(entries_.back().mask.get());
    entries_.pop_back();
  }
  entries_.push_front({mask, place});
  by_mask_.emplace(mask.get(), entries_.begin());
  plan.masks.push_back({place, *mask});
  return place;
}

void MaskTable::clear() {
  entries_.clear();
  by_mask_.clear();
}

}  // namespace millrace::sched
