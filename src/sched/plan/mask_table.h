#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/token_mask.h"
#include "sched/plan/plan.h"

namespace millrace::sched {

/// The head's account of the token masks that the last stage has. A mask travels once, with the first plan that uses
/// it. In a full table a new mask takes the index of the least recently used one. All of it follows from the plans
/// alone, in their order. Owned by the scheduler's PlanBuilder, on the head's thread.
class MaskTable {
 public:
  /// One plan may use up to mask_table_size(slot_count) masks.
  explicit MaskTable(uint32_t slot_count);

  /// Returns the index of `mask`, and adds the mask to the plan if the stage does not have it. Masks are equal only if
  /// they are the same object.
  [[nodiscard]] uint32_t index_of(const std::shared_ptr<const TokenMask>& mask, Plan& plan);
  /// Forgets all masks, since the stages were lost.
  void clear();

 private:
  struct Entry {
    std::shared_ptr<const TokenMask> mask;
    uint32_t index;
  };
  const uint32_t mask_count_;
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<const TokenMask*, std::list<Entry>::iterator> by_mask_;
};

}  // namespace millrace::sched
