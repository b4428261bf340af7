#pragma once

#include <cstdint>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/call_stacks.h"
#include "grammar/id_sorter.h"
#include "grammar/stamped_map.h"
#include "grammar/work_budget.h"

namespace millrace::grammar {

/// Finds the frames that a text may lead to without a further byte. A rule that several frames call at this position
/// runs once and returns to all of them, so that the work is polynomial for every grammar. A run may be continued after
/// its budget has ended, and each of its pieces is of bounded work. Owned by a LazyDfa, with its thread.
class Closure {
 public:
  /// Rules call one another this deep; a text that nests deeper does not match.
  static constexpr uint32_t kMaxDepth = 500;

  Closure(const Automaton& automaton, CallStacks& stacks) : automaton_(automaton), stacks_(stacks) {}

  /// Forgets all that is found.
  void clear();
  void add(Frame frame) { open_.push_back({frame.state, frame.stack}); }
  /// Follows all that was added. Returns false if the budget ends first.
  [[nodiscard]] bool run(WorkBudget& budget);

  /// Returns the frames found whose states read bytes, ascending. Call after run() has returned true.
  [[nodiscard]] std::vector<FrameId> take_readers() { return reader_ids_.take(); }
  [[nodiscard]] bool found_text_end() const { return found_text_end_; }
  /// Returns the largest depth of a visited frame.
  [[nodiscard]] uint32_t max_depth() const { return max_depth_; }

 private:
  /// A frame whose stack may be a run of a rule that has begun at this position.
  struct Item {
    StateId state;
    uint32_t stack;  // a StackId, or kRun plus the index of a Run
  };
  /// A rule that begins at this position, with all that it returns to.
  struct Run {
    std::vector<Item> returns;
    uint32_t depth = UINT32_MAX;
    bool may_be_empty = false;
    bool is_resolved = false;
    StackId resolved = 0;
  };
  struct DeniedCall {
    Item from;
    Automaton::Call call;
  };
  static constexpr uint32_t kRun = 1u << 31;

  [[nodiscard]] static bool is_run(uint32_t stack) { return (stack & kRun) != 0; }
  [[nodiscard]] Run& run_of(uint32_t stack) { return runs_[stack & ~kRun]; }
  [[nodiscard]] uint32_t depth_of(uint32_t stack) {
    return is_run(stack) ? run_of(stack).depth : stacks_.depth_of(stack);
  }
  [[nodiscard]] uint32_t depth_from(const Item& back) {
    return automaton_.is_end(back.state) ? depth_of(back.stack) : depth_of(back.stack) + 1;
  }
  void visit(Item item, WorkBudget& budget);
  void end_rule(uint32_t stack, WorkBudget& budget);
  void call(const Item& from, const Automaton::Call& call);
  // These functions return false if the budget ends first, unless they say otherwise.
  [[nodiscard]] bool follow_all(WorkBudget& budget);
  /// Lowers the depths of runs until none changes.
  [[nodiscard]] bool settle_depths(WorkBudget& budget);
  /// Follows the calls that are not too deep after all. Returns whether there are any.
  [[nodiscard]] bool retry_denied_calls();
  [[nodiscard]] bool collect_readers(WorkBudget& budget);
  /// Makes stacks of a run and of the runs that it returns to.
  [[nodiscard]] bool resolve(uint32_t stack, WorkBudget& budget);
  /// Makes the stack of the last of resolving_, whose returns are resolved.
  [[nodiscard]] bool resolve_last(WorkBudget& budget);
  /// Adds to resolving_ what the last of it returns to and what is not resolved. Returns whether there is any.
  [[nodiscard]] bool add_unresolved(WorkBudget& budget);
  [[nodiscard]] StackId resolved(uint32_t stack) { return is_run(stack) ? run_of(stack).resolved : stack; }

  const Automaton& automaton_;
  CallStacks& stacks_;
  std::vector<Item> open_;
  StampedMap visited_;
  std::vector<Run> runs_;
  StampedMap run_index_;  // by the begin of the rule
  std::vector<Item> readers_;
  std::vector<DeniedCall> denied_;
  bool is_followed_ = false;     // all that was added
  size_t resolved_readers_ = 0;  // whose frames are in reader_ids_
  IdSorter reader_ids_;
  std::vector<uint32_t> resolving_;  // runs; each comes after those that wait for it
  bool is_last_ready_ = false;       // all that the last of them returns to is resolved
  size_t resolved_returns_ = 0;      // of the last of them, whose frames are in return_ids_
  IdSorter return_ids_;
  bool found_text_end_ = false;
  uint32_t max_depth_ = 0;
};

}  // namespace millrace::grammar
