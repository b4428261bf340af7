#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/token_mask.h"
#include "sched/plan/plan.h"

namespace millrace::sched {

/// Which masks of tokens the last stage has, as the head knows it. A mask travels once, with the first plan that uses
/// it, and has a index until the least recently used one's is needed. Follows from the plans alone, in their order.
class MaskTable {
 public:
  /// A plan may use mask_table_size(slot_count) masks; places that it does not need keep those of earlier plans.
  explicit MaskTable(uint32_t slot_count);

  /// The index of `mask`, which is added to the plan if the stage does not have it. Masks are told apart by identity.
  [[nodiscard]] uint32_t index_of(const std::shared_ptr<const TokenMask>& mask, Plan& plan);
  /// The stages know nothing any more.
  void clear();

 private:
  struct Entry {
    std::shared_ptr<const TokenMask> mask;
    uint32_t index;
  };
  const uint32_t mask_count_;
  std::list<Entry> entries_;  // the last used first
  std::unordered_map<const TokenMask*, std::list<Entry>::iterator> by_mask_;
};

}  // namespace millrace::sched
