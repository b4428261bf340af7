#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/work_budget.h"

namespace millrace::grammar {

/// Collects ids and sorts them without duplicates, in pieces of bounded work. Owned by the search that needs it.
class IdSorter {
 public:
  void add(uint32_t id) { ids_.push_back(id); }
  void add(std::span<const uint32_t> ids) { ids_.insert(ids_.end(), ids.begin(), ids.end()); }
  /// Returns false if the budget ends first. A later call continues.
  [[nodiscard]] bool run(WorkBudget& budget);
  /// Returns the ids in ascending order, after run() has returned true. The next ids begin a new set.
  [[nodiscard]] std::vector<uint32_t> take();
  void clear();

 private:
  std::vector<uint32_t> ids_;
  std::vector<uint32_t> merged_;
  size_t sorted_width_ = 0;  // of the blocks of ids_ that are sorted
  size_t at_ = 0;            // of the next block
};

}  // namespace millrace::grammar
