#include "grammar/stack_import.h"

#include <algorithm>

namespace millrace::grammar {

bool StackImport::run(WorkBudget& budget) {
  return find_stacks(budget) && copy_stacks(budget);
}

bool StackImport::find_stacks(WorkBudget& budget) {
  if (is_found_) return true;
  for (; read_lists_ <= found_.size(); ++read_lists_, at_ = 0) {
    const std::span<const FrameId> tops = read_lists_ == 0 ? frames_ : from_.returns_of(found_[read_lists_ - 1]);
    for (; at_ < tops.size(); ++at_) {
      if (budget.is_exhausted()) return false;
      budget.spend(1);
      if (tops[at_] == CallStacks::kTextEnd) continue;
      const StackId stack = from_.frame(tops[at_]).stack;
      if (stack == CallStacks::kBottom || !seen_.try_emplace(stack, 0).second) continue;
      found_.push_back(stack);
      ids_.add(stack);
    }
  }
  if (!ids_.run(budget)) return false;
  stacks_ = ids_.take();
  is_found_ = true;
  at_ = 0;
  return true;
}

// What a stack returns to has smaller ids than the stack, so that ascending order copies it first.
bool StackImport::copy_stacks(WorkBudget& budget) {
  for (;; at_ = 0) {
    const bool is_last = copies_.size() == stacks_.size();
    const std::span<const FrameId> tops = is_last ? frames_ : from_.returns_of(stacks_[copies_.size()]);
    for (; at_ < tops.size(); ++at_) {
      if (budget.is_exhausted()) return false;
      budget.spend(2);
      if (tops[at_] == CallStacks::kTextEnd) {
        ids_.add(CallStacks::kTextEnd);
        continue;
      }
      const Frame& frame = from_.frame(tops[at_]);
      ids_.add(to_.frame_of({frame.state, copy_of(frame.stack)}));
    }
    if (!ids_.run(budget)) return false;
    std::vector<FrameId> copied = ids_.take();
    budget.spend(copied.size() / 8);
    if (is_last) {
      copied_frames_ = std::move(copied);
      return true;
    }
    copies_.push_back(to_.stack_of(copied));
  }
}

StackId StackImport::copy_of(StackId stack) const {
  if (stack == CallStacks::kBottom) return CallStacks::kBottom;
  return copies_[static_cast<size_t>(std::ranges::lower_bound(stacks_, stack) - stacks_.begin())];
}

}  // namespace millrace::grammar
