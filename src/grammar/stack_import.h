#pragma once

#include <span>
#include <vector>

#include "grammar/call_stacks.h"
#include "grammar/id_sorter.h"
#include "grammar/stamped_map.h"
#include "grammar/work_budget.h"

namespace millrace::grammar {

/// Copies frames of one graph of stacks to another graph, with all that they return to. It works in pieces of bounded
/// work. Owned by a matcher that moves to another DFA; its grammar's mutex guards it.
class StackImport {
 public:
  /// Both graphs and the memory of `frames`, which are of `from`, outlive the object.
  StackImport(const CallStacks& from, CallStacks& to, std::span<const FrameId> frames)
      : from_(from), to_(to), frames_(frames) {}

  /// Returns false if the budget ends first. A later call continues.
  [[nodiscard]] bool run(WorkBudget& budget);
  /// Returns the frames' ids in the other graph, ascending, after run() has returned true.
  [[nodiscard]] std::vector<FrameId> take() { return std::move(copied_frames_); }

 private:
  [[nodiscard]] bool find_stacks(WorkBudget& budget);
  [[nodiscard]] bool copy_stacks(WorkBudget& budget);
  [[nodiscard]] StackId copy_of(StackId stack) const;

  const CallStacks& from_;
  CallStacks& to_;
  const std::span<const FrameId> frames_;
  IdSorter ids_;   // of what is read at present
  size_t at_ = 0;  // in the frames that are read at present
  StampedMap seen_;
  std::vector<StackId> found_;   // in the order in which they are found
  size_t read_lists_ = 0;        // whose stacks are found: frames_, then what each of found_ returns to
  bool is_found_ = false;        // all of them
  std::vector<StackId> stacks_;  // as found_, ascending
  std::vector<StackId> copies_;  // of the first of stacks_
  std::vector<FrameId> copied_frames_;
};

}  // namespace millrace::grammar
