#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/hash_index.h"

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
  [[nodiscard]] std::span<const FrameId> returns_of(StackId stack) const {
    return std::span(returns_).subspan(stacks_[stack].begin, stacks_[stack].count);
  }
  /// Returns the number of calls of the shortest stack.
  [[nodiscard]] uint32_t depth_of(StackId stack) const { return stacks_[stack].depth; }
  /// Copies frames of another graph, with all that they return to. Returns their ids here, ascending.
  [[nodiscard]] std::vector<FrameId> import(const CallStacks& from, std::span<const FrameId> frames);
  /// Returns the approximate memory use.
  [[nodiscard]] size_t bytes() const;

 private:
  struct Stack {
    uint32_t begin;  // in returns_
    uint32_t count;
    uint32_t depth;
  };

  std::vector<Frame> frames_;
  std::vector<Stack> stacks_;
  std::vector<FrameId> returns_;
  HashIndex<FrameId> frame_index_;
  HashIndex<StackId> stack_index_;
};

}  // namespace millrace::grammar
