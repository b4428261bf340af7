#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/hash_index.h"
#include "grammar/id_arena.h"

namespace millrace::grammar {

using StackId = uint32_t;
using FrameId = uint32_t;

/// A state of the automaton, and the stacks to return to at the end of its rule.
struct Frame {
  StateId state;
  StackId stack;
  friend bool operator==(const Frame&, const Frame&) = default;
};

/// Sets of call stacks, as a graph whose parts are shared (Tomita 1985). A stack id stands for all the stacks that a
/// rule may return to, as the set of their top frames. Equal sets have one id. Owned by a LazyDfa, with its thread.
class CallStacks {
 public:
  /// The stack of the outermost rule. The only frame that it returns to is kTextEnd.
  static constexpr StackId kBottom = 0;
  /// The frame in which the text is complete.
  static constexpr FrameId kTextEnd = 0;

  CallStacks();

  [[nodiscard]] FrameId frame_of(Frame frame);
  /// Returns the stack that returns to these frames, which are ascending.
  [[nodiscard]] StackId stack_of(std::span<const FrameId> returns);
  [[nodiscard]] const Frame& frame(FrameId id) const { return frames_[id]; }
  /// Returns the frames that a stack returns to, ascending. Valid as long as the graph.
  [[nodiscard]] std::span<const FrameId> returns_of(StackId stack) const { return stacks_[stack].returns; }
  /// Returns the number of calls of the shortest stack.
  [[nodiscard]] uint32_t depth_of(StackId stack) const { return stacks_[stack].depth; }
  /// Returns the approximate memory use.
  [[nodiscard]] size_t bytes() const;

 private:
  struct Stack {
    std::span<const FrameId> returns;
    uint32_t depth;
  };

  std::vector<Frame> frames_;
  std::vector<Stack> stacks_;
  IdArena returns_;
  size_t return_count_ = 0;  // of all stacks
  HashIndex<FrameId> frame_index_;
  HashIndex<StackId> stack_index_;
};

}  // namespace millrace::grammar
